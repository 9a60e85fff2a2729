// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "checkpoint/format/manifest.h"
#include "checkpoint/read/weights.h"
#include "thinwire/checkpoint/checkpoint.h"
#include "thinwire/core/buffer.h"

namespace thinwire::checkpoint {

/// Returns the saved tensor for each of the model's tensors that are no
/// parameters. It is null if none was saved or it is ignored, and `notes` gets
/// a line for it. Throws Error(kCorruptCheckpoint) for one of another shape or
/// type.
[[nodiscard]] std::vector<const SavedParameter*> match_others(
    const std::vector<OtherTensor>& others, const Manifest& manifest,
    const LoadOptions& options, std::vector<std::string>& notes);

/// Their values; empty where there is none. Throws as Weights.
[[nodiscard]] std::vector<Buffer> read_others(
    const std::vector<const SavedParameter*>& saved, Weights& weights);

/// Cannot fail.
void put_in_place(const std::vector<Buffer>& values,
                  const std::vector<OtherTensor>& others) noexcept;

}  // namespace thinwire::checkpoint
