// What a person sees while a job runs, on stderr of rank 0: a bar that redraws itself on a
// terminal, a line every ten seconds otherwise.
#pragma once

#include <string>

#include "checkpoint/loader.h"
#include "engine/engine.h"

namespace tandem {

enum class ProgressMode { kOff, kLines, kTerminal };

// kTerminal if stderr is one.
ProgressMode detect_progress_mode(bool quiet);

class Progress {
 public:
  // num_groups: runs of the whole job, for the estimate of the time left.
  Progress(ProgressMode mode, int num_groups);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void loading(const LoadProgress& progress);
  void running(const EngineStatus& status);
  void end_group();

 private:
  void show(const std::string& text, bool last);

  ProgressMode mode_;
  int num_groups_;
  int groups_done_ = 0;
  double load_start_s_ = 0;
  double last_shown_s_ = 0;
  std::size_t shown_width_ = 0;
};

// "12/40 requests  183.2 tok/s  8 running  20 waiting  KV 31%  acceptance 0.82  ETA 1m 05s"
std::string status_line(const EngineStatus& status, int groups_left);

}  // namespace tandem
