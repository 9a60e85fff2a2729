// SPDX-License-Identifier: Apache-2.0
#include <torch/torch.h>

#include <cmath>
#include <cstdint>
#include <iostream>
#include <optional>
#include <string>
#include <utility>

#include "thinwire/comm/run.h"
#include "thinwire/torch/engine.h"

// A small ResNet on images that the program draws: stripes in four directions.
//   mpirun -n 2 torch_resnet [fp32|bf16|fp16]

namespace nn = torch::nn;

struct Stripes : torch::data::datasets::Dataset<Stripes> {
  Stripes(std::size_t images, std::uint64_t seed)
      : size_(images), seed_(seed) {}
  torch::data::Example<> get(std::size_t index) override {
    auto random = at::detail::createCPUGenerator(seed_ + index);
    const auto direction = static_cast<std::int64_t>(index % 4);
    const double angle = static_cast<double>(direction) * M_PI / 4;
    const auto place = torch::arange(16).to(torch::kFloat);
    const auto wave = torch::sin(place.view({16, 1}) * std::cos(angle) +
                                 place.view({1, 16}) * std::sin(angle) +
                                 torch::rand({1}, random) * 6);
    return {wave + torch::randn({3, 16, 16}, random), torch::tensor(direction)};
  }
  std::optional<std::size_t> size() const override { return size_; }

 private:
  std::size_t size_;
  std::uint64_t seed_;
};

nn::Conv2d conv(int from, int to, int stride) {
  return nn::Conv2d(
      nn::Conv2dOptions(from, to, 3).stride(stride).padding(1).bias(false));
}

struct BlockImpl : nn::Module {
  BlockImpl(int from, int to, int stride)
      : body(conv(from, to, stride), nn::BatchNorm2d(to), nn::ReLU(),
             conv(to, to, 1), nn::BatchNorm2d(to)),
        shortcut(conv(from, to, stride), nn::BatchNorm2d(to)) {
    register_module("body", body);
    register_module("shortcut", shortcut);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return torch::relu(body->forward(x) + shortcut->forward(x));
  }
  nn::Sequential body, shortcut;
};
TORCH_MODULE(Block);

nn::Sequential resnet() {
  return nn::Sequential(conv(3, 8, 1), nn::BatchNorm2d(8), nn::ReLU(),
                        Block(8, 16, 2), Block(16, 32, 2),
                        nn::AdaptiveAvgPool2d(1), nn::Flatten(),
                        nn::Linear(32, 4));
}

// Returns batches of this rank's own part; all parts are equally long.
template <class Sampler>
auto batches(Stripes data, Sampler sampler) {
  return torch::data::make_data_loader(
      std::move(data).map(torch::data::transforms::Stack<>()),
      std::move(sampler), torch::data::DataLoaderOptions(16));
}

void train(thinwire::comm::Communicator& comm, thinwire::DType dtype) {
  using torch::data::samplers::DistributedRandomSampler;
  using torch::data::samplers::DistributedSequentialSampler;
  torch::manual_seed(0);
  const auto world = static_cast<std::size_t>(comm.size());
  const auto rank = static_cast<std::size_t>(comm.rank());
  const Stripes images(1021, 1), others(256, 1'000'000);

  nn::Sequential model = resnet();
  const thinwire::config::Config config{
      .optimizer = thinwire::optim::OnebitAdamOptions{.learning_rate = 0.004,
                                                      .freeze = {.step = 40}},
      .precision = {.dtype = dtype},
      .gradient_clipping = 5,
      .comm = {.verify_every = 16}};
  thinwire::torch::Engine engine(*model, comm, config);
  const auto type = model->parameters().front().scalar_type();
  // Parameters and images have one type; the loss is fp32.
  const auto logits_of = [&](const torch::Tensor& x) {
    return model->forward(x.to(type)).to(torch::kFloat);
  };

  for (std::size_t epoch = 1; epoch <= 4; ++epoch) {
    engine.set_learning_rate(epoch <= 3 ? 0.004 : 0.001);
    DistributedRandomSampler sampler(*images.size(), world, rank);
    sampler.set_epoch(epoch);
    double loss_sum = 0;
    double steps = 0;
    const auto loader = batches(images, std::move(sampler));
    for (auto& batch : *loader) {
      const auto loss =
          nn::functional::cross_entropy(logits_of(batch.data), batch.target);
      engine.backward(loss);
      engine.step();
      loss_sum += loss.item<double>();
      ++steps;
    }

    double right = 0;
    double seen = 0;
    {
      const auto evaluation = engine.evaluation();
      model->eval();
      const auto held_out = batches(
          others, DistributedSequentialSampler(*others.size(), world, rank));
      for (auto& batch : *held_out) {
        const auto found = logits_of(batch.data).argmax(1);
        right += (found == batch.target).sum().item<double>();
        seen += static_cast<double>(batch.target.size(0));
      }
      model->train();
    }
    const double loss = engine.mean(loss_sum / steps);
    const double accuracy = engine.mean(right / seen);
    if (rank == 0)
      std::cout << "epoch " << epoch << ": loss " << loss << ", accuracy "
                << accuracy << std::endl;
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

int main(int argc, char** argv) {
  const std::string type = argc > 1 ? argv[1] : "fp32";
  if (type != "fp32" && type != "bf16" && type != "fp16") {
    std::cerr << "usage: torch_resnet [fp32|bf16|fp16]\n";
    return 2;
  }
  torch::set_num_threads(1);
  return thinwire::comm::run([&](thinwire::comm::Communicator& comm) {
    train(comm, type == "fp32"   ? thinwire::DType::kFloat32
                : type == "bf16" ? thinwire::DType::kBFloat16
                                 : thinwire::DType::kFloat16);
  });
}
