// SPDX-License-Identifier: Apache-2.0
#include "engine/by_hand.h"

#include <algorithm>
#include <limits>
#include <stdexcept>

#include "thinwire/comm/local.h"

namespace thinwire::engine::test {

using config::OptimizerConfig;

namespace {

// In [-1, 1), and looks random.
float number(std::uint32_t seed, std::size_t index) {
  std::uint32_t x = seed * 0x9e3779b9u + static_cast<std::uint32_t>(index);
  x = (x ^ (x >> 16)) * 0x7feb352du;
  x = (x ^ (x >> 15)) * 0x846ca68bu;
  x ^= x >> 16;
  return static_cast<float>(static_cast<std::int32_t>(x) >> 8) * 0x1p-23f;
}

}  // namespace

std::vector<float> initial_params(std::size_t n, int rank) {
  std::vector<float> values(n);
  for (std::size_t i = 0; i < n; ++i)
    values[i] = number(77 + static_cast<std::uint32_t>(rank), i);
  return values;
}

Buffer gradient(const ParameterLayout& layout, int rank, const Batch& batch,
                double factor, DType dtype) {
  std::vector<float> exact(layout.size());
  const auto seed =
      static_cast<std::uint32_t>(batch.step * 64 + batch.micro * 8 + rank + 1);
  const auto scale = static_cast<float>(factor);
  for (std::size_t k = 0; k < layout.parameters().size(); ++k) {
    const Parameter& p = layout.parameters()[k];
    if (is_unused(k, rank)) continue;
    for (std::size_t i = p.offset; i < p.offset + p.size; ++i)
      exact[i] = (0.3f * number(5, i) + number(seed, i)) * scale;
  }
  if (batch.overflows)
    exact[exact.size() / 2] = std::numeric_limits<float>::infinity();
  Buffer result(layout.size(), dtype);
  kernels::convert(exact, result.view());
  return result;
}

std::vector<float> floats(ConstView values) {
  std::vector<float> result(values.size());
  kernels::convert(values, result);
  return result;
}

bool is_zero(ConstView values) {
  const std::vector<float> all = floats(values);
  return std::all_of(all.begin(), all.end(), [](float x) { return x == 0; });
}

void add_floats(std::vector<float>& sum, ConstView values) {
  const std::vector<float> more = floats(values);
  for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += more[i];
}

std::vector<OptimizerCase> optimizer_cases() {
  optim::AdamOptions adam{.learning_rate = 0.01};
  adam.groups = {{}, {.learning_rate = 0.03, .weight_decay = 0.1}};
  optim::LambOptions lamb{.learning_rate = 0.02};
  optim::OnebitAdamOptions onebit_adam{.learning_rate = 0.01,
                                       .freeze = {.step = 3}};
  onebit_adam.groups.resize(2);
  onebit_adam.groups[1].weight_decay = 0.1;
  optim::OnebitLambOptions onebit_lamb{.learning_rate = 0.02,
                                       .freeze = {.step = 3}};
  optim::ZeroOneAdamOptions zero_one_adam{.learning_rate = 0.01,
                                          .var_freeze_step = 3,
                                          .var_update_scaler = 1,
                                          .local_step_scaler = 1,
                                          .local_step_clipper = 3};
  zero_one_adam.groups.resize(2);
  zero_one_adam.groups[1].learning_rate = 0.03;
  return {{"adam", adam},
          {"lamb", lamb},
          {"onebit_adam", onebit_adam},
          {"onebit_lamb", onebit_lamb},
          {"zero_one_adam", zero_one_adam}};
}

std::vector<NamedConfig> few_bits_cases() {
  const auto zero = [](int stage, int up, int down, DType dtype) {
    config::Config config = zero_config(stage, dtype);
    config.gradient_clipping = 20;
    config.zero.wire.bits_up = up;
    config.zero.wire.bits_down = down;
    return config;
  };
  const auto lean = [](DType dtype, int bits) {
    config::Config config = config_of("adam", dtype);
    config.optimizer = lean::LeanOnebitAdamOptions{
        .learning_rate = 0.01, .freeze = {.step = 3}, .denominator_bits = bits};
    config.precision.loss_scale = {};
    config.gradient_clipping = 20;
    return config;
  };
  return {{"zero1", zero(1, 4, 4, DType::kFloat32)},
          {"zero1_bf16", zero(1, 8, 4, DType::kBFloat16)},
          {"zero2", zero(2, 4, 8, DType::kFloat32)},
          {"zero2_fp16", zero(2, 4, 4, DType::kFloat16)},
          {"zero2_up", zero(2, 4, 0, DType::kBFloat16)},
          {"lean", lean(DType::kFloat32, 8)},
          {"lean_bf16", lean(DType::kBFloat16, 4)}};
}

std::string save_run(int world, const Config& config, const std::string& root,
                     std::int64_t steps, const Model& model,
                     const std::string& from) {
  std::string path;
  comm::run_local_ranks(world, [&](comm::Communicator& comm) {
    Sharded run(comm, config, model);
    if (!from.empty()) run.engine.load(from);
    for (std::int64_t t = 1; t <= steps; ++t) run.step({t});
    const auto report = run.engine.save(root, {}, kQuick);
    if (comm.rank() == 0) path = report.path;
  });
  return path;
}

OptimizerConfig optimizer_case(std::string_view name) {
  for (const OptimizerCase& known : optimizer_cases())
    if (known.name == name) return known.options;
  throw std::invalid_argument("no such case");
}

}  // namespace thinwire::engine::test
