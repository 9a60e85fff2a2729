// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace thinwire::optim {

/// Scalar of a state: 1 if the parameters of ranks were not the common ones,
/// which have taken the last step, too (ExchangeOptions::under_next_step).
inline constexpr const char* kParametersDiffer = "parameters_differ";

}  // namespace thinwire::optim
