// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

/// Which processor this is, and what the kernels do differently because of it.
namespace thinwire::kernels {

/// By the name that the processor gives itself; "unknown" where it has none.
[[nodiscard]] std::string processor_name();

/// Whether the kernels' loops ask memory ahead by software prefetch. Decided
/// once per process, by THINWIRE_PREFETCH or else by the processor, when this
/// is first called or a kernel first runs. The results are the same bits either
/// way. Throws Error(kInvalidArgument) for a malformed THINWIRE_PREFETCH; so
/// does a kernel then, before it has written anything.
[[nodiscard]] bool prefetches();

/// What decided: "AMD family 25", "THINWIRE_PREFETCH=on". Throws likewise.
[[nodiscard]] std::string prefetch_reason();

}  // namespace thinwire::kernels
