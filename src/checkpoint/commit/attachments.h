// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "checkpoint/commit/root.h"

namespace thinwire::checkpoint {

/// Throws Error(kInvalidArgument) for a name that no file of a checkpoint may
/// have, one that is taken or given twice, and one that is too large.
void require_attachments(std::span<const Attachment> attachments,
                         std::span<const PlannedFile> files);

}  // namespace thinwire::checkpoint
