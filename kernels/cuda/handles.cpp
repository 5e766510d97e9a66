#include "kernels/cuda/handles.h"

#include <cuda_runtime_api.h>

#include "kernels/cuda/cuda_error.h"

namespace tandem::cuda {

Stream::Stream() {
  // Not ordered with the legacy default stream, which libraries use behind one's back.
  TANDEM_CHECK_CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
}

Stream::~Stream() {
  if (stream_ != nullptr) log_cuda_failure(cudaStreamDestroy(stream_), "destroying a stream");
}

Stream& Stream::operator=(Stream&& other) noexcept {
  std::swap(stream_, other.stream_);
  return *this;
}

void Stream::synchronize() const { TANDEM_CHECK_CUDA(cudaStreamSynchronize(stream_)); }

Event::Event() { TANDEM_CHECK_CUDA(cudaEventCreate(&event_)); }

Event::~Event() {
  if (event_ != nullptr) log_cuda_failure(cudaEventDestroy(event_), "destroying an event");
}

Event& Event::operator=(Event&& other) noexcept {
  std::swap(event_, other.event_);
  return *this;
}

void Event::record(cudaStream_t stream) { TANDEM_CHECK_CUDA(cudaEventRecord(event_, stream)); }

void Event::wait() const { TANDEM_CHECK_CUDA(cudaEventSynchronize(event_)); }

double Event::seconds_since(const Event& earlier) const {
  float milliseconds = 0;
  TANDEM_CHECK_CUDA(cudaEventElapsedTime(&milliseconds, earlier.event_, event_));
  return double{milliseconds} * 1e-3;
}

Graph Graph::capture(cudaStream_t stream, const std::function<void()>& work) {
  TANDEM_CHECK_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  cudaGraph_t graph = nullptr;
  try {
    work();
  } catch (...) {
    // The stream must leave capture mode, or everything after this fails too.
    cudaStreamEndCapture(stream, &graph);
    if (graph != nullptr) cudaGraphDestroy(graph);
    throw;
  }
  TANDEM_CHECK_CUDA(cudaStreamEndCapture(stream, &graph));
  cudaGraphExec_t executable = nullptr;
  const cudaError_t error = cudaGraphInstantiate(&executable, graph, 0);
  log_cuda_failure(cudaGraphDestroy(graph), "destroying a captured graph");
  TANDEM_CHECK_CUDA(error);
  return Graph(executable);
}

Graph::~Graph() {
  if (executable_ != nullptr)
    log_cuda_failure(cudaGraphExecDestroy(executable_), "destroying a graph");
}

Graph& Graph::operator=(Graph&& other) noexcept {
  std::swap(executable_, other.executable_);
  return *this;
}

void Graph::launch(cudaStream_t stream) const {
  TANDEM_CHECK_CUDA(cudaGraphLaunch(executable_, stream));
}

}  // namespace tandem::cuda
