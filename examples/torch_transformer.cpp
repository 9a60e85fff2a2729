// SPDX-License-Identifier: Apache-2.0
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iostream>
#include <optional>
#include <utility>

#include "thinwire/comm/run.h"
#include "thinwire/torch/engine.h"

// A transformer that classifies sequences by the quarter of the alphabet that
// most of their tokens are from. Start it alone or under mpirun.

namespace nn = torch::nn;

constexpr std::int64_t kTokens = 32;
constexpr std::int64_t kLength = 24;

struct Sequences : torch::data::datasets::Dataset<Sequences> {
  Sequences(std::size_t count, std::uint64_t seed)
      : size_(count), seed_(seed) {}
  torch::data::Example<> get(std::size_t index) override {
    auto random = at::detail::createCPUGenerator(seed_ + index);
    const auto label = static_cast<std::int64_t>(index % 4);
    auto tokens = torch::randint(kTokens, {kLength}, random, torch::kLong);
    // At least a third of them are from the label's quarter.
    const auto chosen = torch::randperm(kLength, random).slice(0, 0, 8);
    tokens.index_put_({chosen}, torch::randint(8 * label, 8 * (label + 1), {8},
                                               random, torch::kLong));
    return {tokens, torch::tensor(label)};
  }
  std::optional<std::size_t> size() const override { return size_; }

 private:
  std::size_t size_;
  std::uint64_t seed_;
};

struct ClassifierImpl : nn::Module {
  ClassifierImpl()
      : tokens(kTokens, 32),
        layers(nn::TransformerEncoderOptions(
            nn::TransformerEncoderLayerOptions(32, 4)
                .dim_feedforward(64)
                .dropout(0),
            2)),
        last(32, 4) {
    register_module("tokens", tokens);
    register_module("layers", layers);
    register_module("last", last);
    places = register_parameter("places", torch::randn({kLength, 1, 32}) * 0.1);
  }
  torch::Tensor forward(const torch::Tensor& batch) {
    const auto x = tokens->forward(batch.t()) + places;  // place, sample, 32
    return last->forward(layers->forward(x).mean(0));
  }
  nn::Embedding tokens;
  nn::TransformerEncoder layers;
  nn::Linear last;
  torch::Tensor places;
};
TORCH_MODULE(Classifier);

template <class Sampler>
auto batches(Sequences data, Sampler sampler) {
  return torch::data::make_data_loader(
      std::move(data).map(torch::data::transforms::Stack<>()),
      std::move(sampler), torch::data::DataLoaderOptions(16));
}

void train(thinwire::comm::Communicator& comm) {
  using torch::data::samplers::DistributedRandomSampler;
  using torch::data::samplers::DistributedSequentialSampler;
  torch::manual_seed(0);
  const auto world = static_cast<std::size_t>(comm.size());
  const auto rank = static_cast<std::size_t>(comm.rank());
  const Sequences sequences(1022, 1), others(256, 1'000'000);
  constexpr std::size_t kEpochs = 8;

  Classifier model;
  const thinwire::config::Config config{
      .optimizer = thinwire::optim::OnebitAdamOptions{.learning_rate = 0.003,
                                                      .freeze = {.step = 60}},
      .gradient_clipping = 1,
      .comm = {.verify_every = 16}};
  thinwire::torch::Engine engine(*model, comm, config);

  // The rate rises for 20 steps, then falls with a cosine.
  const double per_epoch = std::ceil(1022.0 / static_cast<double>(world) / 16);
  const double all = per_epoch * static_cast<double>(kEpochs);
  engine.set_schedule([=](double base, std::int64_t applied_steps) {
    const auto n = static_cast<double>(applied_steps);
    return base * std::min((n + 1) / 20, 0.5 + 0.5 * std::cos(M_PI * n / all));
  });

  for (std::size_t epoch = 1; epoch <= kEpochs; ++epoch) {
    DistributedRandomSampler sampler(*sequences.size(), world, rank);
    sampler.set_epoch(epoch);
    double loss_sum = 0;
    double rate = 0;
    const auto loader = batches(sequences, std::move(sampler));
    for (auto& batch : *loader) {
      const auto loss = nn::functional::cross_entropy(
          model->forward(batch.data), batch.target);
      engine.backward(loss);
      rate = engine.step().learning_rate;
      loss_sum += loss.item<double>();
    }

    double right = 0;
    double seen = 0;
    {
      const auto evaluation = engine.evaluation();
      const auto held_out = batches(
          others, DistributedSequentialSampler(*others.size(), world, rank));
      for (auto& batch : *held_out) {
        const auto found = model->forward(batch.data).argmax(1);
        right += (found == batch.target).sum().item<double>();
        seen += static_cast<double>(batch.target.size(0));
      }
    }
    const double loss = engine.mean(loss_sum / per_epoch);
    const double accuracy = engine.mean(right / seen);
    if (rank == 0)
      std::cout << "epoch " << epoch << ": loss " << loss << ", accuracy "
                << accuracy << ", last learning rate " << rate << std::endl;
  }

  double own = 0;
  for (const auto& parameter : model->parameters())
    own += parameter.detach().to(torch::kDouble).square().sum().item<double>();
  const bool is_equal = own == engine.mean(own);
  const double agree = engine.mean(is_equal ? 1 : 0);
  if (rank == 0)
    std::cout << "parameters equal on " << agree * comm.size() << " of "
              << world << " ranks\n";
}

int main() {
  torch::set_num_threads(1);
  return thinwire::comm::run(train);
}
