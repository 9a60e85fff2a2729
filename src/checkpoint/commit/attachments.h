// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "checkpoint/commit/root.h"

namespace thinwire::checkpoint {

/// Throws Error(kInvalidArgument) if a name is invalid, taken, or given twice,
/// or if an attachment is too large.
void require_attachments(std::span<const Attachment> attachments,
                         std::span<const PlannedFile> files);

}  // namespace thinwire::checkpoint
