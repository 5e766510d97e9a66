// Communication between the hosts' main threads: bootstrap, agreement on errors, small messages of
// the step loop, records on their way to rank 0. Sums of activations are DeviceComm's.
//
// Calls marked collective must be made by all ranks of the communicator in the same order. Byte
// counts are 64-bit: larger messages travel in pieces.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/error.h"

namespace tandem {

class HostComm {
 public:
  struct Message {
    int source = 0;
    std::string bytes;
  };

  // All ranks; collective. The first message over a wrongly chosen interface never arrives, so this
  // waits no longer than timeout_s: then Error{kTransport}, naming this host's interfaces.
  static HostComm world(double timeout_s = 60);

  HostComm(HostComm&&) noexcept;
  HostComm& operator=(HostComm&&) noexcept;
  ~HostComm();

  int rank() const { return rank_; }
  int size() const { return size_; }
  // Collective. Ranks of equal color form a communicator, ordered by key, then by rank.
  HostComm split(int color, int key) const;
  // Collective. Same ranks, separate message space.
  HostComm duplicate() const;

  // Collective.
  void barrier() const;
  void bcast_bytes(void* data, std::int64_t bytes, int root = 0) const;
  void bcast(std::string& text, int root = 0) const;
  // recv has size() * bytes_per_rank bytes, in rank order.
  void all_gather_bytes(const void* send, void* recv, std::int64_t bytes_per_rank) const;
  std::vector<std::string> all_gather(const std::string& text) const;
  // Filled at the root, empty elsewhere.
  std::vector<std::string> gather(const std::string& text, int root = 0) const;

  template <typename T>
  void bcast(T& value, int root = 0) const {
    static_assert(std::is_trivially_copyable_v<T>);
    bcast_bytes(&value, sizeof value, root);
  }
  template <typename T>
  void bcast(std::vector<T>& values, int root = 0) const {
    static_assert(std::is_trivially_copyable_v<T>);
    auto count = static_cast<std::int64_t>(values.size());
    bcast(count, root);
    values.resize(static_cast<std::size_t>(count));
    bcast_bytes(values.data(), count * static_cast<std::int64_t>(sizeof(T)), root);
  }
  template <typename T>
  std::vector<T> all_gather(const T& value) const {
    static_assert(std::is_trivially_copyable_v<T>);
    std::vector<T> all(static_cast<std::size_t>(size_));
    all_gather_bytes(&value, all.data(), sizeof value);
    return all;
  }

  // Collective; to be called before a collective that a failed rank would not reach. Each rank says
  // how its last phase ended. If any failed, every rank throws the same Error: the one of the
  // lowest failed rank, with rank and host (left out when all ranks failed alike), and that rank's
  // code.
  void agree(const std::optional<ErrorText>& error, ExitCode code) const;
  // Collective. Runs work() and agrees on its outcome; what is not an Error counts as kInternal.
  template <typename Work>
  auto together(Work&& work) const -> std::invoke_result_t<Work> {
    using Result = std::invoke_result_t<Work>;
    if constexpr (std::is_void_v<Result>) {
      together([&work] {
        work();
        return true;
      });
    } else {
      std::optional<Result> result;
      std::optional<ErrorText> error;
      auto code = ExitCode::kDone;
      try {
        result.emplace(work());
      } catch (const Error& e) {
        error = e.text();
        code = e.code();
      } catch (const std::exception& e) {
        error = ErrorText{.what = e.what()};
        code = ExitCode::kInternal;
      }
      agree(error, code);
      return std::move(*result);
    }
  }

  // Point to point. post() returns at once and keeps the bytes until they are on their way;
  // flush_posts() waits until all are. try_receive() takes one waiting message of this tag from any
  // rank, receive() waits for one from `source`. A message may hold up to 2 GiB.
  void post(std::string bytes, int destination, int tag);
  void flush_posts();
  std::optional<Message> try_receive(int tag);
  Message receive(int source, int tag);

  struct Impl;  // mpi_check.h
  Impl& impl() const { return *impl_; }

 private:
  explicit HostComm(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
  int rank_ = 0;
  int size_ = 1;
};

}  // namespace tandem
