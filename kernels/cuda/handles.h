// Owners of CUDA handles: stream, event, graph. One small move-only class each; constructors throw,
// destructors log.
#pragma once

#include <driver_types.h>

#include <functional>
#include <utility>

namespace tandem::cuda {

class Stream {
 public:
  Stream();
  ~Stream();
  Stream(Stream&& other) noexcept : stream_(std::exchange(other.stream_, nullptr)) {}
  Stream& operator=(Stream&& other) noexcept;

  cudaStream_t get() const { return stream_; }
  void synchronize() const;

 private:
  cudaStream_t stream_ = nullptr;
};

// A time stamp in a stream.
class Event {
 public:
  Event();
  ~Event();
  Event(Event&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
  Event& operator=(Event&& other) noexcept;

  cudaEvent_t get() const { return event_; }
  void record(cudaStream_t stream);
  void wait() const;  // until the stream has reached it
  // Both must have been reached: synchronize the later one's stream first.
  double seconds_since(const Event& earlier) const;

 private:
  cudaEvent_t event_ = nullptr;
};

// Work that was captured once and is launched as a whole, with the same pointers and grid sizes:
// what changes between launches must lie in device-visible memory.
class Graph {
 public:
  // Captures what `work` enqueues on `stream`; nothing of it runs yet.
  static Graph capture(cudaStream_t stream, const std::function<void()>& work);
  ~Graph();
  Graph(Graph&& other) noexcept : executable_(std::exchange(other.executable_, nullptr)) {}
  Graph& operator=(Graph&& other) noexcept;

  void launch(cudaStream_t stream) const;

 private:
  explicit Graph(cudaGraphExec_t executable) : executable_(executable) {}

  cudaGraphExec_t executable_ = nullptr;
};

}  // namespace tandem::cuda
