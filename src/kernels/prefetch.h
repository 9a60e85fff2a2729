// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "thinwire/core/env.h"

/// How prefetches() of thinwire/kernels/processor.h is decided.
namespace thinwire::kernels {

/// As CPUID names it; empty on other architectures.
struct Processor {
  std::string vendor{};  ///< "AuthenticAMD", "GenuineIntel", ...
  int family = 0;
  std::string name{};
};

struct PrefetchChoice {
  bool on = false;
  std::string why;
};

/// What `asked` or, for kAuto, the processor decides. The reasons are in
/// docs/design/0010-prefetch-by-processor.md.
[[nodiscard]] PrefetchChoice choose_prefetch(env::Prefetch asked,
                                             const Processor& processor);

/// Makes prefetches() return `on`; nullopt: what was chosen again. For tests
/// and benchmarks, which compare both in one process. Any thread may call it at
/// any time: every call of a kernel goes by what holds as it begins.
void force_prefetch(std::optional<bool> on) noexcept;

}  // namespace thinwire::kernels
