// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "thinwire/core/env.h"

/// Decides whether prefetches() of thinwire/kernels/processor.h returns true.
namespace thinwire::kernels {

/// The processor's name by CPUID; empty on other architectures.
struct Processor {
  std::string vendor{};  ///< For example "AuthenticAMD" or "GenuineIntel".
  int family = 0;
  std::string name{};
};

struct PrefetchChoice {
  bool on = false;
  std::string why;
};

/// Returns the choice that `asked` names or, for kAuto, the processor's.
/// docs/design/0010-prefetch-by-processor.md has the reasons.
[[nodiscard]] PrefetchChoice choose_prefetch(env::Prefetch asked,
                                             const Processor& processor);

/// Makes prefetches() return `on`, or the original choice if `on` is nullopt.
/// Tests and benchmarks use it to compare both settings in one process. Any
/// thread may call it at any time; a kernel reads the setting when it is
/// called.
void force_prefetch(std::optional<bool> on) noexcept;

}  // namespace thinwire::kernels
