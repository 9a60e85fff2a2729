// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

/// The processor, and the kernels' choices that depend on it.
namespace thinwire::kernels {

/// Returns the processor's name, or "unknown" if it reports none.
[[nodiscard]] std::string processor_name();

/// Returns whether the kernels' loops use software prefetch. THINWIRE_PREFETCH
/// determines it or, if that is unset, the processor. The choice is made once
/// per process, at the first call or when a kernel first runs. The results have
/// the same bits either way. Throws Error(kInvalidArgument) for a malformed
/// THINWIRE_PREFETCH. A kernel also throws this, before it has written
/// anything.
[[nodiscard]] bool prefetches();

/// Returns the reason: "AMD family 25" or "THINWIRE_PREFETCH=on". Throws like
/// prefetches().
[[nodiscard]] std::string prefetch_reason();

}  // namespace thinwire::kernels
