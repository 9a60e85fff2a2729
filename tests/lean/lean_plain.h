// SPDX-License-Identifier: Apache-2.0
// Lean 1-bit Adam, flat or by host: before its freeze against ZeRO-1, after it
// against plain loops.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "support/hosts.h"
#include "thinwire/lean/lean_onebit_adam.h"

namespace thinwire::test {

/// Who exchanges how: flat, or hosts of several ranks each.
struct LeanRanks {
  int world = 1;
  int per_host = 1;
  Placing placing = Placing::kBlocks;

  /// Workers of compressed exchanges.
  [[nodiscard]] int workers() const { return world / per_host; }
  [[nodiscard]] std::string name() const;
};

/// Every rank with the communicator that its optimizer is to have.
void run_lean_ranks(const LeanRanks& ranks,
                    const std::function<void(comm::Communicator&)>& body);

struct LeanVariant {
  const char* name;
  DType dtype;
  lean::LeanOnebitAdamOptions options;
  DType gradients = DType::kFloat32;  ///< From the freeze on.
};
std::vector<LeanVariant> lean_variants();

struct LeanGradients {
  const char* name;
  std::vector<float> (*of)(const ParameterLayout&, std::int64_t step, int rank);
};
/// "all_there", "late", "all_late", "heavy", "spiked".
const std::vector<LeanGradients>& lean_gradients();

/// Some steps of late_layout(), bit for bit and on every rank.
void expect_plain_loops(const LeanRanks& ranks, const LeanGradients& gradients,
                        const LeanVariant& variant);

}  // namespace thinwire::test
