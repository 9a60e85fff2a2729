// SPDX-License-Identifier: Apache-2.0
//   outliers OPTIMIZER FREEZE STEP SIZE...
//
// Moves 1024 parameters of one block to an optimum. In one step one element of
// one rank's gradient is SIZE. Prints a line of JSON for every size that shows
// the effect on the other elements; outliers.py runs it.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "thinwire/comm/local.h"
#include "thinwire/core/error.h"
#include "thinwire/core/parameter_layout.h"
#include "thinwire/optim/adam.h"
#include "thinwire/optim/data_parallel.h"
#include "thinwire/optim/lamb.h"
#include "thinwire/optim/onebit_adam.h"
#include "thinwire/optim/onebit_lamb.h"
#include "thinwire/optim/zero_one_adam.h"

namespace {

using namespace thinwire;

constexpr int kRanks = 2;
constexpr int kSteps = 1000;
constexpr std::size_t kElements = 1024;
constexpr std::size_t kOutlier = 17;
constexpr float kStart = 0.5f;
constexpr float kOptimum = 5;
constexpr double kLearningRate = 0.01;

struct Case {
  std::string optimizer;
  std::int64_t freeze = 0;
  int step = 0;
  float size = 0;  // 0 for none
};

struct Outcome {
  double distance = 0;      // mean of the others, at the end
  double longest_step = 0;  // of any element, in any step; inf if not finite
};

std::unique_ptr<optim::Optimizer> make_optimizer(
    const Case& c, comm::Communicator& comm, const ParameterLayout& layout) {
  using namespace optim;
  if (c.optimizer == "adam")
    return std::make_unique<DataParallel>(
        comm, std::make_unique<Adam>(
                  layout, AdamOptions{.learning_rate = kLearningRate}));
  if (c.optimizer == "lamb")
    return std::make_unique<DataParallel>(
        comm, std::make_unique<Lamb>(
                  layout, LambOptions{.learning_rate = kLearningRate}));
  if (c.optimizer == "onebit_adam")
    return std::make_unique<OnebitAdam>(
        comm, layout,
        OnebitAdamOptions{.learning_rate = kLearningRate,
                          .freeze = {.step = c.freeze}});
  if (c.optimizer == "onebit_lamb")
    return std::make_unique<OnebitLamb>(
        comm, layout,
        OnebitLambOptions{.learning_rate = kLearningRate,
                          .freeze = {.step = c.freeze}});
  if (c.optimizer == "zero_one_adam")
    return std::make_unique<ZeroOneAdam>(
        comm, layout,
        ZeroOneAdamOptions{.learning_rate = kLearningRate,
                           .var_freeze_step = c.freeze,
                           .local_step_scaler = 200,
                           .local_step_clipper = 4});
  throw Error(ErrorCode::kInvalidArgument,
              "no optimizer '" + c.optimizer + "'");
}

double longest(const std::vector<float>& from, const std::vector<float>& to) {
  double most = 0;
  for (std::size_t i = 0; i < from.size(); ++i) {
    if (!std::isfinite(to[i])) return std::numeric_limits<double>::infinity();
    most = std::max(most, std::abs(double{to[i]} - from[i]));
  }
  return most;
}

Outcome outcome_of(const std::vector<float>& params, double longest_step) {
  Outcome outcome{.longest_step = longest_step};
  for (std::size_t i = 0; i < kElements; ++i) {
    if (i != kOutlier) outcome.distance += std::abs(params[i] - kOptimum);
  }
  outcome.distance /= kElements - 1;
  return outcome;
}

Outcome train(const Case& c) {
  const auto layout = ParameterLayout::of({{"p", {kElements}}});
  Outcome outcome;
  comm::run_local_ranks(kRanks, [&](comm::Communicator& comm) {
    const auto optimizer = make_optimizer(c, comm, layout);
    std::vector<float> params(kElements, kStart);
    std::vector<float> grads(kElements);
    std::mt19937 random(static_cast<unsigned>(comm.rank()));
    std::normal_distribution<float> noise;
    double most = 0;
    for (int step = 1; step <= kSteps; ++step) {
      for (std::size_t i = 0; i < kElements; ++i)
        grads[i] = params[i] - kOptimum + 0.3f * noise(random);
      if (step == c.step && c.size != 0 && comm.rank() == 0)
        grads[kOutlier] = c.size;
      const auto before = params;
      optimizer->step(params, grads);
      most = std::max(most, longest(before, params));
    }
    synchronize(*optimizer, params);
    if (comm.rank() == 0) outcome = outcome_of(params, most);
  });
  return outcome;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 5) {
    std::cerr << "usage: outliers OPTIMIZER FREEZE STEP SIZE...\n";
    return 2;
  }
  try {
    for (int i = 4; i < argc; ++i) {
      const Outcome o = train({.optimizer = argv[1],
                               .freeze = std::stoll(argv[2]),
                               .step = std::stoi(argv[3]),
                               .size = std::stof(argv[i])});
      // Numbers that JSON lacks are written as text.
      std::cout << fmt::format(
          "{{\"size\": \"{}\", \"distance\": \"{:.4g}\", "
          "\"longest_step\": \"{:.4g}\"}}\n",
          argv[i], o.distance, o.longest_step);
    }
  } catch (const std::exception& error) {
    std::cerr << "outliers: " << error.what() << '\n';
    return 1;
  }
}
