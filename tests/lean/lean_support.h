// SPDX-License-Identifier: Apache-2.0
// What a caller of LeanOnebitAdam holds, one rank of it.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "optim/low_bit/options.h"
#include "thinwire/lean/lean_onebit_adam.h"
#include "zero/support.h"

namespace thinwire::test {

using lean::LeanOnebitAdam;
using lean::LeanOnebitAdamOptions;

struct LeanRun {
  LeanRun(comm::Communicator& comm, const ParameterLayout& of, DType dtype,
          const LeanOnebitAdamOptions& options)
      : layout(of),
        start(normal(of.size(), 3)),
        params(rounded(start, dtype)),
        optimizer(std::make_unique<LeanOnebitAdam>(comm, layout, params.view(),
                                                   options, start)) {}

  optim::StepReport step(std::vector<float> grads) {
    return optimizer->step(params.view(), grads);
  }
  /// fp32 values of all parameters: collective before the freeze.
  [[nodiscard]] std::vector<float> full() const {
    std::vector<float> all;
    for (const Parameter& p : layout.parameters()) {
      const auto values = optimizer->full_parameter(p.name);
      all.insert(all.end(), values.begin(), values.end());
    }
    return all;
  }
  [[nodiscard]] std::vector<float> values() const {
    return floats_of(params.view());
  }

  ParameterLayout layout;
  std::vector<float> start;
  Buffer params;
  std::unique_ptr<LeanOnebitAdam> optimizer;
};

/// ZeRO-1 with the same rule, which the exact stage is.
inline ZeroRun exact_twin(comm::Communicator& comm,
                          const ParameterLayout& layout, DType dtype,
                          const LeanOnebitAdamOptions& o) {
  return ZeroRun(comm, layout, adam_rule(optim::adam_options(o)),
                 {.dtype = dtype, .exchange = o.compression.exchange});
}

}  // namespace thinwire::test
