// The wire of RankGuard: frames over non-blocking TCP connections between each rank and rank 0, and
// how they come about. What the frames mean is RankGuard's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/error.h"
#include "parallel/host_comm.h"

namespace tandem {

class FileDescriptor {
 public:
  explicit FileDescriptor(int fd = -1) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(other.release()) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept;
  ~FileDescriptor();
  int get() const { return fd_; }
  int release();
  explicit operator bool() const { return fd_ >= 0; }

 private:
  int fd_;
};

enum class FrameType : std::uint32_t {
  kHello = 1,  // rank to root: token, rank
  kWelcome,    // root to rank: token
  kHeartbeat,  // both ways
  kFailure,    // rank to root: code, status, text
  kMessage,    // rank to root: kind, bytes
  kGoodbye,    // both ways: the end of the connection is no failure from here on
  kExit,       // root to rank: code, text; end the process
};

struct Frame {
  FrameType type{};
  std::string body;
};

// Bodies: plain values and length-prefixed strings in the machine's byte order; all ranks run the
// same binary.
class FrameWriter {
 public:
  template <typename T>
  FrameWriter& put(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    body_.append(reinterpret_cast<const char*>(&value), sizeof value);
    return *this;
  }
  FrameWriter& put_text(std::string_view text) {
    put(static_cast<std::uint32_t>(text.size()));
    body_.append(text);
    return *this;
  }
  const std::string& body() const { return body_; }

 private:
  std::string body_;
};

class FrameReader {
 public:
  explicit FrameReader(std::string_view body) : rest_(body) {}
  template <typename T>
  T get() {
    static_assert(std::is_trivially_copyable_v<T>);
    TANDEM_CHECK(rest_.size() >= sizeof(T), "short frame");
    T value;
    std::memcpy(&value, rest_.data(), sizeof value);
    rest_.remove_prefix(sizeof value);
    return value;
  }
  std::string get_text() {
    const auto size = get<std::uint32_t>();
    TANDEM_CHECK(rest_.size() >= size, "short frame");
    std::string text(rest_.substr(0, size));
    rest_.remove_prefix(size);
    return text;
  }

 private:
  std::string_view rest_;
};

class GuardLink {
 public:
  GuardLink() = default;
  explicit GuardLink(FileDescriptor socket) : socket_(std::move(socket)) {}

  bool open() const { return static_cast<bool>(socket_); }
  int fd() const { return socket_.get(); }
  std::size_t unsent_bytes() const { return out_.size(); }

  // Never blocks: what the socket does not take now waits for flush(). Nothing happens once closed.
  void send(FrameType type, std::string_view body);
  void flush();
  // The complete frames that have arrived. Closes the link at the end of the stream, on an error
  // and on bytes that are no frames.
  std::vector<Frame> receive();
  // Waits for one frame; false if none came in time or the link closed. For the handshake only.
  bool receive_one(Frame& frame, double timeout_s);
  void close() { socket_ = FileDescriptor(); }

 private:
  bool take_frame(Frame& frame);

  FileDescriptor socket_;
  std::string in_;
  std::string out_;
};

// Collective. Rank 0 listens on a free port of every interface and the other ranks connect to the
// first of its addresses that answers with the job's secret token. Returns one link per rank on
// rank 0 (its own stays closed), one link to rank 0 elsewhere. Throws Error{kTransport} on all
// ranks alike.
std::vector<GuardLink> connect_guard_links(const HostComm& world);

}  // namespace tandem
