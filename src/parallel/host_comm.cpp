#include "parallel/host_comm.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <exception>
#include <thread>

#include "base/clock.h"
#include "base/hash.h"
#include "parallel/host_info.h"
#include "parallel/mpi_check.h"

namespace tandem {
namespace {

// MPI counts are int; pieces of a quarter GiB also bound what the library buffers.
constexpr std::int64_t kPieceBytes = std::int64_t{1} << 28;

MPI_Comm duplicated(MPI_Comm source) {
  MPI_Comm copy = MPI_COMM_NULL;
  TANDEM_CHECK_MPI(MPI_Comm_dup(source, &copy));
  return copy;
}

// Waits for every rank without blocking in MPI for ever: with a wrong interface the first message
// is lost and a plain barrier would hang silently.
void start_barrier(double timeout_s) {
  MPI_Request request = MPI_REQUEST_NULL;
  TANDEM_CHECK_MPI(MPI_Ibarrier(MPI_COMM_WORLD, &request));
  const double deadline = monotonic_s() + timeout_s;
  int done = 0;
  while (true) {
    TANDEM_CHECK_MPI(MPI_Test(&request, &done, MPI_STATUS_IGNORE));
    if (done != 0) return;
    if (monotonic_s() > deadline) {
      throw Error(
          ExitCode::kTransport,
          {.what = fmt::format("no answer from the other ranks within {:.0f} s; this host has {}",
                               timeout_s, fmt::join(describe_interfaces(), ", ")),
           .where = fmt::format("first barrier, host {}", host_name()),
           .expected = "every rank to be reachable over MPI's interface",
           .remedy = "name the network that joins the hosts, by subnet: mpirun --mca "
                     "btl_tcp_if_include 10.0.0.0/24 --mca oob_tcp_if_include 10.0.0.0/24 "
                     "(bridges such as docker0 have the same address everywhere)"});
    }
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
}

}  // namespace

HostComm::Impl::~Impl() {
  // MPI may still be reading what was never received: better leaked than reused.
  if (!posts.empty()) static_cast<void>(new std::deque<Post>(std::move(posts)));
  // MPI_Comm_free is collective, so not while an error unwinds on this rank alone.
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (finalized == 0 && comm != MPI_COMM_NULL && std::uncaught_exceptions() == 0) {
    MPI_Comm_free(&comm);
  }
}

HostComm::HostComm(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {
  TANDEM_CHECK_MPI(MPI_Comm_set_errhandler(impl_->comm, MPI_ERRORS_RETURN));
  TANDEM_CHECK_MPI(MPI_Comm_rank(impl_->comm, &rank_));
  TANDEM_CHECK_MPI(MPI_Comm_size(impl_->comm, &size_));
}

HostComm::HostComm(HostComm&&) noexcept = default;
HostComm& HostComm::operator=(HostComm&&) noexcept = default;
HostComm::~HostComm() = default;

HostComm HostComm::world(double timeout_s) {
  start_barrier(timeout_s);
  return HostComm(std::make_unique<Impl>(duplicated(MPI_COMM_WORLD)));
}

HostComm HostComm::split(int color, int key) const {
  MPI_Comm part = MPI_COMM_NULL;
  TANDEM_CHECK_MPI(MPI_Comm_split(impl_->comm, color, key, &part));
  return HostComm(std::make_unique<Impl>(part));
}

HostComm HostComm::duplicate() const {
  return HostComm(std::make_unique<Impl>(duplicated(impl_->comm)));
}

void HostComm::barrier() const { TANDEM_CHECK_MPI(MPI_Barrier(impl_->comm)); }

void HostComm::bcast_bytes(void* data, std::int64_t bytes, int root) const {
  auto* at = static_cast<char*>(data);
  for (std::int64_t done = 0; done < bytes; done += kPieceBytes) {
    const auto piece = static_cast<int>(std::min(kPieceBytes, bytes - done));
    TANDEM_CHECK_MPI(MPI_Bcast(at + done, piece, MPI_BYTE, root, impl_->comm));
  }
}

void HostComm::bcast(std::string& text, int root) const {
  auto length = static_cast<std::int64_t>(text.size());
  bcast(length, root);
  text.resize(static_cast<std::size_t>(length));
  bcast_bytes(text.data(), length, root);
}

void HostComm::all_gather_bytes(const void* send, void* recv, std::int64_t bytes_per_rank) const {
  if (bytes_per_rank <= kPieceBytes) {
    const auto count = static_cast<int>(bytes_per_rank);
    TANDEM_CHECK_MPI(MPI_Allgather(send, count, MPI_BYTE, recv, count, MPI_BYTE, impl_->comm));
    return;
  }
  auto* all = static_cast<char*>(recv);
  std::memcpy(all + rank_ * bytes_per_rank, send, static_cast<std::size_t>(bytes_per_rank));
  for (int r = 0; r < size_; ++r) bcast_bytes(all + r * bytes_per_rank, bytes_per_rank, r);
}

std::vector<std::string> HostComm::all_gather(const std::string& text) const {
  std::vector<std::string> all(static_cast<std::size_t>(size_));
  for (int r = 0; r < size_; ++r) {
    auto& part = all[static_cast<std::size_t>(r)];
    if (r == rank_) part = text;
    bcast(part, r);
  }
  return all;
}

std::vector<std::string> HostComm::gather(const std::string& text, int root) const {
  const auto lengths = all_gather(static_cast<std::int64_t>(text.size()));
  std::vector<std::string> all;
  constexpr int kTag = 1 << 14;
  const auto for_each_piece = [](std::int64_t bytes, auto&& move) {
    for (std::int64_t done = 0; done < bytes; done += kPieceBytes) {
      move(done, static_cast<int>(std::min(kPieceBytes, bytes - done)));
    }
  };
  if (rank_ != root) {
    for_each_piece(lengths[static_cast<std::size_t>(rank_)], [&](std::int64_t at, int bytes) {
      TANDEM_CHECK_MPI(MPI_Send(text.data() + at, bytes, MPI_BYTE, root, kTag, impl_->comm));
    });
    return all;
  }
  for (int r = 0; r < size_; ++r) {
    std::string part;
    if (r == root) {
      part = text;
    } else {
      part.resize(static_cast<std::size_t>(lengths[static_cast<std::size_t>(r)]));
      for_each_piece(lengths[static_cast<std::size_t>(r)], [&](std::int64_t at, int bytes) {
        TANDEM_CHECK_MPI(
            MPI_Recv(part.data() + at, bytes, MPI_BYTE, r, kTag, impl_->comm, MPI_STATUS_IGNORE));
      });
    }
    all.push_back(std::move(part));
  }
  return all;
}

void HostComm::agree(const std::optional<ErrorText>& error, ExitCode code) const {
  struct Status {
    int code = 0;
    int failed = 0;
    std::uint64_t text_hash = 0;
  };
  const std::string own = error ? format_error(*error) : std::string();
  const auto all = all_gather(
      Status{.code = static_cast<int>(code), .failed = error ? 1 : 0, .text_hash = xxh3_64(own)});
  const auto failed = [](const Status& s) { return s.failed != 0; };
  const auto num_failed = std::count_if(all.begin(), all.end(), failed);
  if (num_failed == 0) return;
  const auto first = std::find_if(all.begin(), all.end(), failed);
  const auto culprit = static_cast<int>(first - all.begin());

  ErrorText text = error.value_or(ErrorText{});
  std::string host = host_name();
  for (std::string* part : {&text.what, &text.where, &text.expected, &text.remedy, &host}) {
    bcast(*part, culprit);
  }
  const bool all_alike =
      num_failed == size_ && std::all_of(all.begin(), all.end(), [&](const Status& s) {
        return s.text_hash == first->text_hash;
      });
  if (!all_alike && size_ > 1) {
    auto who = fmt::format("rank {} on {}", culprit, host);
    if (num_failed > 1) who += fmt::format(" (and {} more)", num_failed - 1);
    text.where = text.where.empty() ? who : who + ": " + text.where;
  }
  throw Error(static_cast<ExitCode>(first->code), text, ErrorScope::kAllRanks);
}

void HostComm::post(std::string bytes, int destination, int tag) {
  auto& posts = impl_->posts;
  while (!posts.empty()) {
    int done = 0;
    TANDEM_CHECK_MPI(MPI_Test(&posts.front().request, &done, MPI_STATUS_IGNORE));
    if (done == 0) break;
    posts.pop_front();
  }
  TANDEM_CHECK(bytes.size() <= 0x7fffffffu, "message of {} bytes", bytes.size());
  auto& entry = posts.emplace_back();
  entry.bytes = std::move(bytes);
  TANDEM_CHECK_MPI(MPI_Isend(entry.bytes.data(), static_cast<int>(entry.bytes.size()), MPI_BYTE,
                             destination, tag, impl_->comm, &entry.request));
}

void HostComm::flush_posts() {
  for (auto& entry : impl_->posts) TANDEM_CHECK_MPI(MPI_Wait(&entry.request, MPI_STATUS_IGNORE));
  impl_->posts.clear();
}

std::optional<HostComm::Message> HostComm::try_receive(int tag) {
  int waiting = 0;
  MPI_Status status;
  TANDEM_CHECK_MPI(MPI_Iprobe(MPI_ANY_SOURCE, tag, impl_->comm, &waiting, &status));
  if (waiting == 0) return std::nullopt;
  return receive(status.MPI_SOURCE, tag);
}

HostComm::Message HostComm::receive(int source, int tag) {
  MPI_Status status;
  TANDEM_CHECK_MPI(MPI_Probe(source, tag, impl_->comm, &status));
  int bytes = 0;
  TANDEM_CHECK_MPI(MPI_Get_count(&status, MPI_BYTE, &bytes));
  Message message{.source = status.MPI_SOURCE,
                  .bytes = std::string(static_cast<std::size_t>(bytes), '\0')};
  TANDEM_CHECK_MPI(MPI_Recv(message.bytes.data(), bytes, MPI_BYTE, status.MPI_SOURCE, tag,
                            impl_->comm, MPI_STATUS_IGNORE));
  return message;
}

}  // namespace tandem
