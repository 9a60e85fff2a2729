// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

/// SIMD instructions of the kernels. They are chosen when the first kernel
/// runs: those that THINWIRE_SIMD names (docs/env.md), or else the best ones.
/// All of them give the same bits. If THINWIRE_SIMD names unsupported
/// instructions, kernels throw Error(kInvalidArgument).
namespace thinwire::kernels {

/// Returns Highway's name of the target in use, for example "AVX3" or "NEON".
[[nodiscard]] std::string cpu_target();

/// Returns the targets that this machine and build support, best first.
[[nodiscard]] std::vector<std::string> cpu_targets();

/// Makes every kernel of the process use the target `name`, or the original
/// choice if it is "". For tests and benchmarks only; do not call it while
/// another thread runs a kernel. Throws Error(kInvalidArgument) with the
/// supported targets if `name` is not among them.
void force_cpu_target(std::string_view name);

}  // namespace thinwire::kernels
