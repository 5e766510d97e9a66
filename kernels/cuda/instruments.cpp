// A stream's clock: events around work that is enqueued call by call, or replayed as one graph.
#include <cuda_runtime_api.h>

#include <optional>
#include <utility>

#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/handles.h"

namespace tandem::cuda {
namespace {

class StreamTimer final : public ops::DeviceTimer {
 public:
  StreamTimer(CudaBackend& backend, ops::Submit submit, int calls, std::function<void()> work)
      : backend_(backend), calls_(calls), work_(std::move(work)) {
    if (submit == ops::Submit::kOneByOne) return;
    graph_ = backend_.capture([this] { enqueue(); });
    // The first launch uploads the graph.
    graph_->launch(backend_.stream());
    backend_.synchronize();
  }

  double seconds() override {
    begin_.record(backend_.stream());
    if (graph_) {
      graph_->launch(backend_.stream());
    } else {
      enqueue();
    }
    end_.record(backend_.stream());
    backend_.synchronize();
    return end_.seconds_since(begin_);
  }

 private:
  void enqueue() {
    for (int i = 0; i < calls_; ++i) work_();
  }

  CudaBackend& backend_;
  int calls_;
  std::function<void()> work_;
  std::optional<Graph> graph_;
  Event begin_, end_;
};

}  // namespace

std::unique_ptr<ops::DeviceTimer> make_device_timer(CudaBackend& backend, ops::Submit submit,
                                                    int calls, std::function<void()> work) {
  return std::make_unique<StreamTimer>(backend, submit, calls, std::move(work));
}

}  // namespace tandem::cuda
