// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

/// The processor, and what the kernels do differently because of it.
namespace thinwire::kernels {

/// Returns the processor's own name, or "unknown" if it has none.
[[nodiscard]] std::string processor_name();

/// Returns whether the kernels' loops use software prefetch. THINWIRE_PREFETCH
/// or, without it, the processor decides once per process, when this is first
/// called or a kernel first runs. The results are the same bits either way.
/// Throws Error(kInvalidArgument) for a malformed THINWIRE_PREFETCH; a kernel
/// then throws it too, before it has written anything.
[[nodiscard]] bool prefetches();

/// Returns the reason: "AMD family 25" or "THINWIRE_PREFETCH=on". Throws like
/// prefetches().
[[nodiscard]] std::string prefetch_reason();

}  // namespace thinwire::kernels
