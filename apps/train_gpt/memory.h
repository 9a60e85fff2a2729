// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "apps/train_gpt/report/run_record.h"
#include "thinwire/core/memory.h"

namespace thinwire::train_gpt {

/// Of the thread that this rank is.
[[nodiscard]] MemoryOfRank memory_of_rank(const MemoryUse::Bytes& bytes);

/// A line for people.
[[nodiscard]] std::string describe(const MemoryOfRank& memory);

}  // namespace thinwire::train_gpt
