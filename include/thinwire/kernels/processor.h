// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

/// The processor's name, and the kernels' choices that depend on the processor.
namespace thinwire::kernels {

/// Returns the processor's name, or "unknown" if it reports none.
[[nodiscard]] std::string processor_name();

/// Returns whether the kernels' loops use software prefetch. THINWIRE_PREFETCH
/// decides this or, if it is unset, the kind of processor. The choice is made
/// once per process, at the first call or when a kernel first runs. The results
/// have the same bits either way. Throws Error(kInvalidArgument) for a
/// malformed THINWIRE_PREFETCH. Kernels throw the same error, before they write
/// anything.
[[nodiscard]] bool prefetches();

/// Returns the reason for the choice: "AMD family 25" or
/// "THINWIRE_PREFETCH=on". Throws like prefetches().
[[nodiscard]] std::string prefetch_reason();

}  // namespace thinwire::kernels
