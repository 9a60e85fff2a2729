// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

/// Which SIMD instructions the kernels use. They are chosen once, when the
/// first kernel runs; the results are the same bits for all of them.
namespace thinwire::kernels {

/// The target in use, by Highway's name: "AVX3", "AVX2", "SSE4", "NEON", ...
[[nodiscard]] std::string cpu_target();

/// The targets that this machine and build support, best first.
[[nodiscard]] std::vector<std::string> cpu_targets();

/// Makes every kernel of the process use the target `name`; "" is the best one
/// again. For tests and benchmarks; not while a kernel runs in another thread.
/// Throws Error(kInvalidArgument), naming the supported ones.
void force_cpu_target(std::string_view name);

}  // namespace thinwire::kernels
