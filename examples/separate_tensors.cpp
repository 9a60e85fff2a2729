// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <functional>
#include <iostream>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "thinwire/comm/run.h"
#include "thinwire/core/parameter_layout.h"
#include "thinwire/core/view.h"
#include "thinwire/engine/engine.h"

// A tensor of another library, with its own memory.
struct Tensor {
  Tensor(std::string its_name, std::vector<std::size_t> its_shape)
      : name(std::move(its_name)),
        shape(std::move(its_shape)),
        values(std::accumulate(shape.begin(), shape.end(), std::size_t{1},
                               std::multiplies<>())),
        gradient(values.size()) {}

  std::string name;
  std::vector<std::size_t> shape;
  std::vector<float> values;
  std::vector<float> gradient;
};

// Returns the place of each tensor in the flat arrays: in this order, without
// gaps.
thinwire::ParameterLayout layout_of(const std::vector<Tensor>& model) {
  std::vector<thinwire::ParameterSpec> specs;
  for (const Tensor& tensor : model)
    specs.push_back({.name = tensor.name, .shape = tensor.shape});
  return thinwire::ParameterLayout::of(std::move(specs));
}

// Returns the part of a flat array that belongs to one tensor.
std::span<float> part_of(std::vector<float>& flat,
                         const thinwire::Parameter& parameter) {
  return std::span(flat).subspan(parameter.offset, parameter.size);
}

// Finds the centre of points that every rank draws itself. Start it alone or
// under mpirun.
void find_centre(thinwire::comm::Communicator& comm) {
  std::vector<Tensor> model{
      {"first.weight", {300, 50}}, {"first.bias", {50}}, {"scale", {}}};

  const auto layout = layout_of(model);
  std::vector<float> params(layout.size()), grads(layout.size());
  for (std::size_t k = 0; k < model.size(); ++k)
    std::ranges::copy(model[k].values,
                      part_of(params, layout.parameters()[k]).begin());
  thinwire::engine::Engine engine(
      comm, layout,
      {.optimizer =
           thinwire::optim::OnebitAdamOptions{.learning_rate = 0.02,
                                              .freeze = {.step = 100}}},
      params, grads);
  const auto take_parameters = [&] {
    for (std::size_t k = 0; k < model.size(); ++k)
      std::ranges::copy(part_of(params, layout.parameters()[k]),
                        model[k].values.begin());
  };
  take_parameters();  // The engine has set them to rank 0's.

  std::mt19937 random(static_cast<unsigned>(comm.rank()));
  std::normal_distribution<float> noise;
  const auto compute_gradient = [&](Tensor& tensor) {
    for (std::size_t i = 0; i < tensor.values.size(); ++i)
      tensor.gradient[i] =
          tensor.values[i] - (i % 2 == 0 ? 1.0f : -1.0f) + noise(random);
  };
  for (int step = 1; step <= 400; ++step) {
    engine.begin_backward();
    for (std::size_t k = model.size(); k-- > 0;) {
      compute_gradient(model[k]);
      std::ranges::copy(model[k].gradient,
                        part_of(grads, layout.parameters()[k]).begin());
      engine.gradient_ready(k);  // May be sent while others are computed.
    }
    engine.end_backward();
    const auto report = engine.step();
    take_parameters();
    if (comm.rank() == 0 && step % 50 == 0) {
      std::cout << "step " << step << ": " << to_string(report.phase)
                << ", first number " << model[0].values[0] << ", "
                << report.bytes_sent << " bytes sent\n";
    }
  }
}

int main() { return thinwire::comm::run(find_centre); }
