// The promises a record has to keep before it may enter the file, and the columns that follow from
// others. A broken promise is a defect of the engine: Error{kInternal} naming request or step.
#pragma once

#include "output/records.h"

namespace tandem {

// Fills in the derived columns and checks the record.
void complete_and_check(RequestRecord& record);
void check(const StepRecord& record);
void check(const MemoryRow& sample);
void check(const PowerSample& sample);
void check(const CanaryRecord& record);
void check(const GroupRecord& group);

}  // namespace tandem
