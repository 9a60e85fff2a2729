// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace thinwire::optim {

/// Scalar of a state. It is 1 if the ranks' parameters differed from the common
/// ones, which already include the last step
/// (ExchangeOptions::under_next_step).
inline constexpr const char* kParametersDiffer = "parameters_differ";

}  // namespace thinwire::optim
