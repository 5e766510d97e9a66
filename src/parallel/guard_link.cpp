#include "parallel/guard_link.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>

#include "base/clock.h"
#include "parallel/host_info.h"

namespace tandem {
namespace {

constexpr std::uint32_t kMagic = 0x544e444d;
constexpr std::uint32_t kMaxBodyBytes = 1 << 20;
constexpr std::size_t kTokenBytes = 16;
constexpr double kConnectTimeout_s = 2;
constexpr double kHandshakeTimeout_s = 3;
constexpr double kAllConnected_s = 30;

struct FrameHeader {
  std::uint32_t magic = kMagic;
  std::uint32_t type = 0;
  std::uint32_t body_bytes = 0;
};

// What rank 0 tells the others, over MPI.
struct Invitation {
  std::uint16_t port = 0;
  std::string token;
  std::string host_id;
  std::vector<std::string> addresses;
};

Error transport_error(std::string what, std::string where) {
  return Error(ExitCode::kTransport,
               {.what = std::move(what),
                .where = std::move(where),
                .expected = "TCP connections from every rank to rank 0's host",
                .remedy = "open the firewall between the hosts for TCP"});
}

bool wait_for(int fd, short events, double timeout_s) {
  pollfd entry{.fd = fd, .events = events, .revents = 0};
  return poll(&entry, 1, static_cast<int>(timeout_s * 1000)) == 1;
}

void prepare(int fd) {
  fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

// IPv6 sockets take IPv4 connections as well; hosts without IPv6 get a plain one.
FileDescriptor listen_on_free_port(std::uint16_t& port) {
  FileDescriptor socket_v6(::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (socket_v6) {
    const int off = 0;
    setsockopt(socket_v6.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    sockaddr_in6 any{};
    any.sin6_family = AF_INET6;
    any.sin6_addr = in6addr_any;
    socklen_t length = sizeof any;
    auto* address = reinterpret_cast<sockaddr*>(&any);
    if (bind(socket_v6.get(), address, length) == 0 && listen(socket_v6.get(), 128) == 0 &&
        getsockname(socket_v6.get(), address, &length) == 0) {
      port = ntohs(any.sin6_port);
      return socket_v6;
    }
  }
  FileDescriptor socket_v4(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in any{};
  any.sin_family = AF_INET;
  any.sin_addr.s_addr = htonl(INADDR_ANY);
  socklen_t length = sizeof any;
  auto* address = reinterpret_cast<sockaddr*>(&any);
  if (!socket_v4 || bind(socket_v4.get(), address, length) != 0 ||
      listen(socket_v4.get(), 128) != 0 || getsockname(socket_v4.get(), address, &length) != 0) {
    throw transport_error(fmt::format("cannot listen on any TCP port: {}", std::strerror(errno)),
                          "rank guard");
  }
  port = ntohs(any.sin_port);
  return socket_v4;
}

// Empty on failure, with the reason.
FileDescriptor connect_to(const std::string& host, std::uint16_t port, std::string& reason) {
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found) != 0) {
    reason = "not an address";
    return FileDescriptor();
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, freeaddrinfo);
  FileDescriptor fd(::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) {
    reason = std::strerror(errno);
    return fd;
  }
  int status = connect(fd.get(), found->ai_addr, found->ai_addrlen) == 0 ? 0 : errno;
  if (status == EINPROGRESS) {
    if (wait_for(fd.get(), POLLOUT, kConnectTimeout_s)) {
      socklen_t length = sizeof status;
      getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &status, &length);
    } else {
      status = ETIMEDOUT;
    }
  }
  if (status != 0) {
    reason = std::strerror(status);
    return FileDescriptor();
  }
  prepare(fd.get());
  return fd;
}

std::string random_token() {
  std::string token(kTokenBytes, '\0');
  TANDEM_CHECK(getrandom(token.data(), token.size(), 0) == static_cast<ssize_t>(token.size()));
  return token;
}

void share(const HostComm& world, Invitation& invitation) {
  world.bcast(invitation.port);
  world.bcast(invitation.token);
  world.bcast(invitation.host_id);
  auto count = static_cast<int>(invitation.addresses.size());
  world.bcast(count);
  invitation.addresses.resize(static_cast<std::size_t>(count));
  for (auto& address : invitation.addresses) world.bcast(address);
}

// Strangers (port scanners) are turned away; a rank that does not come in time is an error.
void accept_all(const FileDescriptor& listener, const std::string& token,
                std::vector<GuardLink>& links) {
  const double deadline = monotonic_s() + kAllConnected_s;
  for (std::size_t missing = links.size() - 1; missing > 0;) {
    const double left = deadline - monotonic_s();
    if (left <= 0 || !wait_for(listener.get(), POLLIN, left)) {
      std::vector<std::size_t> absent;
      for (std::size_t r = 1; r < links.size(); ++r) {
        if (!links[r].open()) absent.push_back(r);
      }
      throw transport_error(fmt::format("no TCP connection from rank {} within {:.0f} s",
                                        fmt::join(absent, ", "), kAllConnected_s),
                            "rank guard");
    }
    FileDescriptor socket(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!socket) continue;
    prepare(socket.get());
    GuardLink link(std::move(socket));
    Frame hello;
    if (!link.receive_one(hello, kHandshakeTimeout_s) || hello.type != FrameType::kHello ||
        hello.body.size() != kTokenBytes + sizeof(std::int32_t) ||
        hello.body.compare(0, kTokenBytes, token) != 0) {
      continue;
    }
    const auto rank =
        FrameReader(std::string_view(hello.body).substr(kTokenBytes)).get<std::int32_t>();
    if (rank < 1 || static_cast<std::size_t>(rank) >= links.size()) continue;
    auto& place = links[static_cast<std::size_t>(rank)];
    if (!place.open()) --missing;
    place = std::move(link);
    place.send(FrameType::kWelcome, token);
  }
}

GuardLink connect_to_root(const Invitation& invitation, int rank) {
  std::vector<std::string> candidates;
  if (invitation.host_id == host_id()) candidates = {"127.0.0.1", "::1"};
  candidates.insert(candidates.end(), invitation.addresses.begin(), invitation.addresses.end());
  std::vector<std::string> tried;
  for (const auto& address : candidates) {
    std::string reason;
    GuardLink link(connect_to(address, invitation.port, reason));
    if (link.open()) {
      FrameWriter hello;
      hello.put(static_cast<std::int32_t>(rank));
      link.send(FrameType::kHello, invitation.token + hello.body());
      Frame welcome;
      // Equal private addresses on both hosts lead to a wrong machine: only the token proves it.
      if (link.receive_one(welcome, kHandshakeTimeout_s) && welcome.type == FrameType::kWelcome &&
          welcome.body == invitation.token) {
        return link;
      }
      reason = "answered, but is not rank 0 of this job";
    }
    tried.push_back(fmt::format("{} port {}: {}", address, invitation.port, reason));
  }
  throw transport_error(fmt::format("cannot reach rank 0; tried {}; this host has {}",
                                    tried.empty() ? "nothing (rank 0's host has no address)"
                                                  : fmt::format("{}", fmt::join(tried, ", ")),
                                    fmt::join(describe_interfaces(), ", ")),
                        "rank guard");
}

}  // namespace

FileDescriptor& FileDescriptor::operator=(FileDescriptor&& other) noexcept {
  if (this != &other) {
    if (fd_ >= 0) ::close(fd_);
    fd_ = other.release();
  }
  return *this;
}

FileDescriptor::~FileDescriptor() {
  if (fd_ >= 0) ::close(fd_);
}

int FileDescriptor::release() {
  const int fd = fd_;
  fd_ = -1;
  return fd;
}

void GuardLink::send(FrameType type, std::string_view body) {
  if (!open()) return;
  TANDEM_CHECK(body.size() <= kMaxBodyBytes, "frame of {} bytes", body.size());
  const FrameHeader header{.type = static_cast<std::uint32_t>(type),
                           .body_bytes = static_cast<std::uint32_t>(body.size())};
  out_.append(reinterpret_cast<const char*>(&header), sizeof header).append(body);
  flush();
}

void GuardLink::flush() {
  while (open() && !out_.empty()) {
    const auto sent = ::send(fd(), out_.data(), out_.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent > 0) {
      out_.erase(0, static_cast<std::size_t>(sent));
    } else if (errno != EINTR) {
      // A broken connection is reported by receive(), after what the peer still had to say.
      if (errno != EAGAIN && errno != EWOULDBLOCK) out_.clear();
      return;
    }
  }
}

bool GuardLink::take_frame(Frame& frame) {
  FrameHeader header;
  if (in_.size() < sizeof header) return false;
  std::memcpy(&header, in_.data(), sizeof header);
  if (header.magic != kMagic || header.body_bytes > kMaxBodyBytes) {
    close();
    in_.clear();
    return false;
  }
  if (in_.size() < sizeof header + header.body_bytes) return false;
  frame.type = static_cast<FrameType>(header.type);
  frame.body = in_.substr(sizeof header, header.body_bytes);
  in_.erase(0, sizeof header + header.body_bytes);
  return true;
}

std::vector<Frame> GuardLink::receive() {
  std::vector<Frame> frames;
  bool ended = false;
  while (open() && !ended) {
    char buffer[16384];
    const auto got = recv(fd(), buffer, sizeof buffer, MSG_DONTWAIT);
    if (got > 0) {
      in_.append(buffer, static_cast<std::size_t>(got));
    } else if (got == 0 || (errno != EINTR && errno != EAGAIN && errno != EWOULDBLOCK)) {
      ended = true;
    } else if (errno != EINTR) {
      break;
    }
  }
  for (Frame frame; take_frame(frame);) frames.push_back(std::move(frame));
  if (ended) close();
  return frames;
}

bool GuardLink::receive_one(Frame& frame, double timeout_s) {
  const double deadline = monotonic_s() + timeout_s;
  while (open()) {
    // Byte by frame: what follows the handshake stays in the socket for receive().
    const std::size_t have = in_.size();
    std::size_t want = sizeof(FrameHeader);
    if (have >= want) {
      FrameHeader header;
      std::memcpy(&header, in_.data(), sizeof header);
      if (header.magic != kMagic || header.body_bytes > 1024) return false;
      want += header.body_bytes;
    }
    if (have >= want && take_frame(frame)) return true;
    const double left = deadline - monotonic_s();
    if (left <= 0 || !wait_for(fd(), POLLIN, left)) return false;
    char buffer[2048];
    const auto got = recv(fd(), buffer, std::min(want - have, sizeof buffer), MSG_DONTWAIT);
    if (got > 0) {
      in_.append(buffer, static_cast<std::size_t>(got));
    } else if (got == 0 || (errno != EINTR && errno != EAGAIN)) {
      return false;
    }
  }
  return false;
}

std::vector<GuardLink> connect_guard_links(const HostComm& world) {
  Invitation invitation;
  FileDescriptor listener;
  world.together([&] {
    if (world.rank() != 0) return;
    listener = listen_on_free_port(invitation.port);
    invitation.token = random_token();
    invitation.host_id = host_id();
    for (const auto& entry : host_addresses()) invitation.addresses.push_back(entry.address);
  });
  share(world, invitation);
  return world.together([&] {
    std::vector<GuardLink> links(world.rank() == 0 ? static_cast<std::size_t>(world.size()) : 1);
    if (world.rank() == 0) {
      accept_all(listener, invitation.token, links);
    } else {
      links[0] = connect_to_root(invitation, world.rank());
    }
    return links;
  });
}

}  // namespace tandem
