// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cstddef>
#include <iostream>
#include <memory>
#include <random>
#include <span>
#include <vector>

#include "thinwire/comm/run.h"
#include "thinwire/core/parameter_layout.h"
#include "thinwire/core/view.h"
#include "thinwire/optim/zero_one_adam.h"

namespace comm = thinwire::comm;
namespace optim = thinwire::optim;

constexpr std::size_t kInputs = 400;
constexpr int kSteps = 400;

// y = weight . x + bias. Parameters and gradients are parts of two flat arrays.
struct Model {
  explicit Model(const thinwire::ParameterLayout& layout)
      : params(layout.size()),
        grads(layout.size()),
        weight(part(params, layout.parameter("weight"))),
        bias(part(params, layout.parameter("bias"))),
        weight_gradient(part(grads, layout.parameter("weight"))),
        bias_gradient(part(grads, layout.parameter("bias"))) {}

  static std::span<float> part(std::vector<float>& flat,
                               const thinwire::Parameter& parameter) {
    return std::span(flat).subspan(parameter.offset, parameter.size);
  }

  std::vector<float> params, grads;
  std::span<float> weight, bias;
  std::span<float> weight_gradient, bias_gradient;
};

// One sample: 20 inputs are 1. The target is their number in even places.
struct Sample {
  std::array<std::size_t, 20> ones{};
  float wanted = 0;
};

Sample draw(std::mt19937& random) {
  Sample sample;
  for (std::size_t& i : sample.ones) {
    i = random() % kInputs;
    sample.wanted += i % 2 == 0 ? 1.0f : 0.0f;
  }
  return sample;
}

float difference(const Model& model, const Sample& sample) {
  float y = model.bias[0];
  for (const std::size_t i : sample.ones) y += model.weight[i];
  return y - sample.wanted;
}

// Adds this rank's gradient of half the squared difference, times `share`.
void add_gradient(Model& model, const Sample& sample, float share) {
  const float d = share * difference(model, sample);
  for (const std::size_t i : sample.ones) model.weight_gradient[i] += d;
  model.bias_gradient[0] += d;
}

double learning_rate_of(int step) {
  constexpr double kPeak = 0.03;
  return kPeak * std::min(step / 40.0, 1 - step / (kSteps + 1.0));
}

// Returns the mean over all samples of all ranks, on equal parameters.
double evaluate(comm::Communicator& comm, const Model& model) {
  std::mt19937 random(1000 + static_cast<unsigned>(comm.rank()));
  std::array<double, 1> loss{};
  for (int i = 0; i < 100; ++i) {
    const double d = difference(model, draw(random));
    loss[0] += d * d / 200;
  }
  comm.all_reduce(loss, comm::ReduceOp::kMean);
  return loss[0];
}

void train(comm::Communicator& comm) {
  const auto layout = thinwire::ParameterLayout::of(
      {{.name = "weight", .shape = {kInputs}}, {.name = "bias", .shape = {1}}});
  Model model(layout);
  comm.broadcast(model.params, 0);  // All ranks start with the same values.
  const optim::ZeroOneAdamOptions options{
      .var_freeze_step = 200,
      .local_step_scaler = 50,
      .local_step_clipper = 4,
      .compression = {.exchange = {.max_grad_norm = 10}}};
  auto optimizer = std::make_unique<optim::ZeroOneAdam>(comm, layout, options);

  std::mt19937 random(static_cast<unsigned>(comm.rank()));
  for (int step = 1; step <= kSteps; ++step) {
    std::ranges::fill(model.grads, 0.0f);
    constexpr int kMicroBatches = 4;
    for (int micro_batch = 0; micro_batch < kMicroBatches; ++micro_batch)
      for (int i = 0; i < 8; ++i)
        add_gradient(model, draw(random), 1.0f / (8 * kMicroBatches));

    optimizer->groups().set_learning_rate(learning_rate_of(step));
    const auto report = optimizer->step(model.params, model.grads);
    if (!report.applied && comm.rank() == 0)
      std::cout << "step " << step << " skipped: the gradient of rank "
                << report.nonfinite_rank << " is not finite\n";

    if (step == kSteps / 2) {  // Like a run that ends here and resumes later.
      const thinwire::StateDict state = copy_of(optimizer->state());
      optimizer = std::make_unique<optim::ZeroOneAdam>(comm, layout, options);
      optimizer->load_state_dict(state);
    }
    if (step % 50 == 0) {
      synchronize(*optimizer, model.params);
      const double loss = evaluate(comm, model);
      if (comm.rank() == 0)
        std::cout << "step " << step << ": " << to_string(report.phase)
                  << ", loss " << loss << ", " << report.bytes_sent
                  << " bytes sent\n";
    }
  }
}

int main() { return comm::run(train); }
