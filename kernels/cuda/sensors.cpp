// NVML comes with the driver, not with the toolkit, and a program that links it does not start
// without a driver: it is opened when it is wanted. Its header is not always installed either; the
// few declarations used here are part of NVML's stable interface (their names carry versions).
#include "kernels/cuda/sensors.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <utility>

#include "kernels/cuda/cuda_error.h"
#include "kernels/cuda/shared_library.h"

namespace tandem::cuda {
namespace {

using NvmlDevice = struct NvmlDeviceHandle*;
using NvmlResult = int;
constexpr NvmlResult kNvmlSuccess = 0;
constexpr int kNvmlClockSm = 1, kNvmlClockMemory = 2;
constexpr int kNvmlTemperatureGpu = 0;

struct NvmlUtilization {
  unsigned gpu = 0, memory = 0;  // percent
};

struct Nvml {
  SharedLibrary library{"libnvidia-ml.so.1"};

  template <class... Arguments>
  using Function = NvmlResult (*)(Arguments...);
  Function<> init = library.find<Function<>>("nvmlInit_v2");
  Function<> shutdown = library.find<Function<>>("nvmlShutdown");
  Function<const char*, NvmlDevice*> handle_by_pci =
      library.find<Function<const char*, NvmlDevice*>>("nvmlDeviceGetHandleByPciBusId_v2");
  Function<NvmlDevice, NvmlUtilization*> utilization =
      library.find<Function<NvmlDevice, NvmlUtilization*>>("nvmlDeviceGetUtilizationRates");
  Function<NvmlDevice, unsigned*> power =
      library.find<Function<NvmlDevice, unsigned*>>("nvmlDeviceGetPowerUsage");
  Function<NvmlDevice, int, unsigned*> clock =
      library.find<Function<NvmlDevice, int, unsigned*>>("nvmlDeviceGetClockInfo");
  Function<NvmlDevice, int, unsigned*> temperature =
      library.find<Function<NvmlDevice, int, unsigned*>>("nvmlDeviceGetTemperature");
  Function<char*, unsigned> driver_version =
      library.find<Function<char*, unsigned>>("nvmlSystemGetDriverVersion");
  const char* (*error_text)(NvmlResult) =
      library.find<const char* (*)(NvmlResult)>("nvmlErrorString");
};

class NvmlSensors final : public DeviceSensors {
 public:
  explicit NvmlSensors(std::unique_ptr<Nvml> nvml) : nvml_(std::move(nvml)) {}
  ~NvmlSensors() override {
    if (initialized_) nvml_->shutdown();
  }

  // "" when the device was found.
  std::string open(const char* pci_bus_id) {
    NvmlResult result = nvml_->init();
    initialized_ = result == kNvmlSuccess;
    if (initialized_) result = nvml_->handle_by_pci(pci_bus_id, &device_);
    if (result == kNvmlSuccess) return "";
    return fmt::format("NVML and GPU {}: {}", pci_bus_id, nvml_->error_text(result));
  }

  DeviceReadings read() override {
    DeviceReadings r;
    NvmlUtilization utilization;
    if (answered(r, "GPU utilisation", nvml_->utilization(device_, &utilization)))
      r.utilization_percent = utilization.gpu;
    unsigned value = 0;
    if (answered(r, "power", nvml_->power(device_, &value))) r.power_w = value * 1e-3;
    if (answered(r, "SM clock", nvml_->clock(device_, kNvmlClockSm, &value)))
      r.sm_clock_hz = value * 1e6;
    if (answered(r, "memory clock", nvml_->clock(device_, kNvmlClockMemory, &value)))
      r.memory_clock_hz = value * 1e6;
    if (answered(r, "temperature", nvml_->temperature(device_, kNvmlTemperatureGpu, &value)))
      r.temperature_c = value;
    return r;
  }

  std::string driver_version() override {
    char text[96] = {};
    return nvml_->driver_version(text, sizeof text) == kNvmlSuccess ? text : "";
  }

 private:
  bool answered(DeviceReadings& r, const char* name, NvmlResult result) const {
    if (result != kNvmlSuccess)
      r.missing.push_back(fmt::format("{}: {}", name, nvml_->error_text(result)));
    return result == kNvmlSuccess;
  }

  std::unique_ptr<Nvml> nvml_;
  bool initialized_ = false;
  NvmlDevice device_ = nullptr;
};

std::string short_version(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

}  // namespace

std::unique_ptr<DeviceSensors> make_nvml_sensors(std::string& why) {
  auto nvml = std::make_unique<Nvml>();
  if (!nvml->library.error().empty()) {
    why = "NVML: " + nvml->library.error();
    return nullptr;
  }
  int device = 0;
  char pci_bus_id[32] = {};
  TANDEM_CHECK_CUDA(cudaGetDevice(&device));
  TANDEM_CHECK_CUDA(cudaDeviceGetPCIBusId(pci_bus_id, sizeof pci_bus_id, device));
  auto sensors = std::make_unique<NvmlSensors>(std::move(nvml));
  why = sensors->open(pci_bus_id);
  if (!why.empty()) return nullptr;
  return sensors;
}

std::string cuda_version_text() {
  int runtime = 0, driver = 0;
  TANDEM_CHECK_CUDA(cudaRuntimeGetVersion(&runtime));
  // Succeeds with 0 where there is no driver.
  TANDEM_CHECK_CUDA(cudaDriverGetVersion(&driver));
  return fmt::format(
      "CUDA {}, {}", short_version(runtime),
      driver == 0 ? "no driver" : fmt::format("driver for CUDA {}", short_version(driver)));
}

}  // namespace tandem::cuda
