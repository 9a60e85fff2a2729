// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <istream>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>

#include "apps/train_gpt/report/run_record.h"

namespace thinwire::train_gpt {

// Keys in the order in which people read them.
using Json = nlohmann::ordered_json;

// JSON has no NaN: null stands for it.
inline double number(const Json& object, const char* key) {
  const Json& value = object.at(key);
  return value.is_null() ? std::numeric_limits<double>::quiet_NaN()
                         : value.get<double>();
}

/// Lines of metrics.jsonl, without their ends.
[[nodiscard]] std::string line_of(const StepRow& row);
[[nodiscard]] std::string line_of(const ValidationRow& row);

/// All of metrics.jsonl: each validation after its step.
[[nodiscard]] std::string lines_of(const RunRecord& run);

/// Adds the rows of a metrics.jsonl to `run`. `was_killed`: its last line may
/// be torn, and is then left out. Throws nlohmann's exceptions.
void read_lines(std::istream& file, bool was_killed, RunRecord& run);

}  // namespace thinwire::train_gpt
