// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "thinwire/core/env.h"

/// How prefetches() of thinwire/kernels/processor.h is decided.
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

/// Returns the choice of `asked` or, for kAuto, that of the processor. See
/// docs/design/0010-prefetch-by-processor.md for the reasons.
[[nodiscard]] PrefetchChoice choose_prefetch(env::Prefetch asked,
                                             const Processor& processor);

/// Makes prefetches() return `on`; nullopt: what was chosen again. For tests
/// and benchmarks, which compare both in one process. Any thread may call it at
/// any time: every call of a kernel goes by what holds as it begins.
void force_prefetch(std::optional<bool> on) noexcept;

}  // namespace thinwire::kernels
