// SPDX-License-Identifier: Apache-2.0
//   late_elements OPTIMIZER TOKENS SEED
//
// Trains a small net whose tokens 40 to 55 are present from the start, appear
// late or are rare. Prints the result as a line of JSON; late_elements.py runs
// it.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <iostream>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "thinwire/comm/local.h"
#include "thinwire/config/config.h"
#include "thinwire/core/error.h"
#include "thinwire/core/parameter_layout.h"
#include "thinwire/engine/engine.h"
#include "thinwire/lean/lean_onebit_adam.h"
#include "thinwire/optim/onebit_adam.h"
#include "thinwire/optim/onebit_lamb.h"

namespace {

using namespace thinwire;

constexpr int kRanks = 4;
constexpr int kSteps = 6000;
constexpr int kSamples = 8;  // per rank and step
constexpr int kValidationSamples = 2000;
constexpr int kFirstLateStep = 1500;
constexpr double kLearningRate = 3e-3;

constexpr std::size_t kInputs = 8;
constexpr std::size_t kWidth = 24;
constexpr std::uint32_t kCommonTokens = 40;
constexpr std::uint32_t kTokens = 56;  // the rest of the table is never used
constexpr std::size_t kRows = 64;

// The tokens that a step's samples may have.
struct TokenCase {
  std::uint32_t tokens = kTokens;
  std::uint32_t rarity = 0;  // one draw in `rarity` of tokens >= 40 stands

  static TokenCase in_step(const std::string& name, int step) {
    if (name == "late" && step < kFirstLateStep) return {kCommonTokens};
    if (name.rfind("rare", 0) == 0)
      return {kTokens, static_cast<std::uint32_t>(std::stoul(name.substr(4)))};
    return {};
  }

  std::uint32_t draw(std::mt19937& random) const {
    const auto token = static_cast<std::uint32_t>(random()) % tokens;
    if (rarity == 0 || token < kCommonTokens) return token;
    if (random() % rarity == 0) return token;
    return static_cast<std::uint32_t>(random()) % kCommonTokens;
  }
};

// A sample of the target function: a wave that each token moves, and a product.
struct Sample {
  std::size_t token = 0;
  std::array<float, kInputs> inputs{};
  float wanted = 0;

  Sample(std::size_t t, std::mt19937& random,
         std::normal_distribution<float>& normal)
      : token(t) {
    for (float& x : inputs) x = normal(random);
    wanted = std::sin(inputs[0] + 0.1f * static_cast<float>(token)) +
             0.5f * inputs[1] * inputs[2] + 0.05f * normal(random);
  }
};

// y = out . tanh(table[token] + weights x) + bias
class TanhNet {
 public:
  static ParameterLayout layout() {
    return ParameterLayout::of({{"table", {kRows, kWidth}},
                                {"weights", {kWidth, kInputs}},
                                {"out", {kWidth}},
                                {"bias", {}}});
  }

  // Returns half the squared error of one of `count` samples, divided by their
  // number. Adds its gradient to `grads`, if given.
  static double loss(std::span<const float> params, const Sample& sample,
                     float count, std::span<float> grads = {}) {
    const auto row = params.subspan(sample.token * kWidth, kWidth);
    const auto weights = params.subspan(kRows * kWidth, kWidth * kInputs);
    const auto out = params.subspan((kRows + kInputs) * kWidth, kWidth);
    std::array<float, kWidth> hidden{};
    float y = params.back();
    for (std::size_t i = 0; i < kWidth; ++i) {
      float sum = row[i];
      for (std::size_t j = 0; j < kInputs; ++j)
        sum += weights[i * kInputs + j] * sample.inputs[j];
      hidden[i] = std::tanh(sum);
      y += out[i] * hidden[i];
    }
    const float error = y - sample.wanted;
    if (!grads.empty()) {
      const float slope = error / count;
      grads.back() += slope;
      for (std::size_t i = 0; i < kWidth; ++i) {
        const float inner = slope * out[i] * (1 - hidden[i] * hidden[i]);
        grads[(kRows + kInputs) * kWidth + i] += slope * hidden[i];
        grads[sample.token * kWidth + i] += inner;
        for (std::size_t j = 0; j < kInputs; ++j)
          grads[kRows * kWidth + i * kInputs + j] += inner * sample.inputs[j];
      }
    }
    return 0.5 * error * error / count;
  }
};

double validation_loss(std::span<const float> params) {
  std::mt19937 random(9);
  std::normal_distribution<float> normal;
  double loss = 0;
  for (int i = 0; i < kValidationSamples; ++i) {
    const auto token = static_cast<std::uint32_t>(random()) % kTokens;
    loss += TanhNet::loss(params, Sample(token, random, normal),
                          static_cast<float>(kValidationSamples));
  }
  return loss;
}

config::OptimizerConfig optimizer_of(const std::string& name) {
  using namespace optim;
  constexpr std::int64_t kFreeze = 600;
  const auto onebit_adam = [](OnebitAdamOptions options) {
    options.learning_rate = kLearningRate;
    return options;
  };
  if (name == "adam" || name == "zero_4_4")
    return AdamOptions{.learning_rate = kLearningRate};
  if (name == "onebit_adam") return onebit_adam({.freeze = {.step = kFreeze}});
  if (name == "onebit_adam_auto")
    return onebit_adam({.freeze = {.step = kAutoFreeze,
                                   .lr_warmup_steps = 10,
                                   .total_steps = kSteps}});
  if (name == "zero_one_adam")
    return ZeroOneAdamOptions{.learning_rate = kLearningRate,
                              .var_freeze_step = 3000,
                              .local_step_scaler = 750,
                              .local_step_clipper = 16};
  if (name == "lamb") return LambOptions{.learning_rate = kLearningRate};
  if (name == "onebit_lamb")
    return OnebitLambOptions{.learning_rate = kLearningRate,
                             .freeze = {.step = kFreeze}};
  if (name == "lean_onebit_adam")
    return lean::LeanOnebitAdamOptions{.learning_rate = kLearningRate,
                                       .freeze = {.step = kFreeze}};
  throw Error(ErrorCode::kInvalidArgument, "no optimizer '" + name + "'");
}

// "NAME_by_host" means two hosts of two ranks.
config::Config config_of(std::string name) {
  constexpr std::string_view kByHost = "_by_host";
  config::Config config{.comm = {.hierarchy = config::Hierarchy::kFlat}};
  if (name.ends_with(kByHost)) {
    name.resize(name.size() - kByHost.size());
    config.comm.hierarchy = config::Hierarchy::kByHost;
    config.comm.ranks_per_host = 2;
  }
  config.optimizer = optimizer_of(name);
  if (name == "zero_4_4")
    config.zero = {.stage = 1, .wire = {.bits_up = 4, .bits_down = 4}};
  return config;
}

// Returns the last step before low-bit exchanges, or 0 if there is none.
std::int64_t frozen_at(const optim::Optimizer& optimizer) {
  const optim::FreezeStage* const freeze = optimizer.freeze();
  return freeze == nullptr ? 0 : freeze->frozen_at();
}

struct Run {
  std::string optimizer;
  std::string tokens;
  unsigned seed = 0;
};

void train(const Run& run) {
  const ParameterLayout layout = TanhNet::layout();
  const config::Config config = config_of(run.optimizer);
  std::vector<std::vector<float>> params(kRanks);
  std::int64_t frozen = 0;
  comm::run_local_ranks(kRanks, [&](comm::Communicator& comm) {
    auto& mine = params[static_cast<std::size_t>(comm.rank())];
    std::vector<float> grads(layout.size());
    mine.resize(layout.size());
    std::mt19937 start(5 + 1000 * run.seed);
    std::normal_distribution<float> first(0, 0.3f);
    for (float& p : mine) p = first(start);
    engine::Engine engine(comm, layout, config, mine, grads);
    std::mt19937 random(100 + static_cast<unsigned>(comm.rank()) +
                        1000 * run.seed);
    for (int step = 0; step < kSteps; ++step) {
      engine.begin_backward();
      std::normal_distribution<float> normal;
      for (int i = 0; i < kSamples; ++i) {
        const auto token = TokenCase::in_step(run.tokens, step).draw(random);
        TanhNet::loss(mine, Sample(token, random, normal), kSamples, grads);
      }
      engine.end_backward();
      engine.step();
    }
    engine.begin_evaluation();
    if (comm.rank() == 0) frozen = frozen_at(engine.optimizer());
    engine.end_evaluation();
  });
  const bool equal = std::all_of(params.begin(), params.end(),
                                 [&](auto& p) { return p == params[0]; });
  std::cout << fmt::format(
      "{{\"loss\": {:.6g}, \"frozen_at\": {}, \"equal\": {}}}\n",
      validation_loss(params[0]), frozen, equal);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::cerr << "usage: late_elements OPTIMIZER all|late|rareN SEED\n";
    return 2;
  }
  try {
    train({argv[1], argv[2], static_cast<unsigned>(std::stoul(argv[3]))});
  } catch (const std::exception& error) {
    std::cerr << "late_elements: " << error.what() << '\n';
    return 1;
  }
}
