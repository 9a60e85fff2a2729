// SPDX-License-Identifier: Apache-2.0
//   image_classifier CONFIG PICTURES STEPS SEED
//
// Trains a small ResNet on the pictures of Fashion-MNIST with four ranks, each
// a thread, by a configuration file. Prints the result as a line of JSON;
// image_classifier.py runs it.
#include <torch/torch.h>

#include <cstdint>
#include <exception>
#include <iostream>
#include <string>
#include <vector>

#include "thinwire/comm/local.h"
#include "thinwire/torch/engine.h"

namespace {

namespace nn = torch::nn;
using torch::data::datasets::MNIST;

constexpr int kRanks = 4;
constexpr std::int64_t kBatch = 32;  // per rank and step
constexpr std::int64_t kTestBatch = 250;
constexpr std::int64_t kClasses = 10;

struct Pictures {
  torch::Tensor images, labels;

  // Pixels have about mean 0 and deviation 1.
  static Pictures load(const std::string& folder, MNIST::Mode mode) {
    const MNIST set(folder, mode);
    return {(set.images() - 0.286) / 0.353, set.targets()};
  }
  std::int64_t size() const { return labels.size(0); }
};

// Draws every picture once before any repeats, in an order of the seed's. Each
// step uses the next pictures, and each rank its part of them.
class Order {
 public:
  Order(std::int64_t pictures, std::uint64_t seed)
      : pictures_(pictures), seed_(seed) {}

  torch::Tensor batch(std::int64_t step, int rank) {
    const std::int64_t steps = pictures_ / (kBatch * kRanks);
    if (step % steps == 0) {
      auto random = at::detail::createCPUGenerator(
          seed_ * 1000 + static_cast<std::uint64_t>(step / steps));
      order_ = torch::randperm(pictures_, random);
    }
    return order_.narrow(0, (step % steps * kRanks + rank) * kBatch, kBatch);
  }

 private:
  std::int64_t pictures_;
  std::uint64_t seed_;
  torch::Tensor order_;
};

nn::Conv2d conv(int from, int to, int size, int stride) {
  return nn::Conv2d(nn::Conv2dOptions(from, to, size)
                        .stride(stride)
                        .padding(size / 2)
                        .bias(false));
}

struct BlockImpl : nn::Module {
  BlockImpl(int from, int to)
      : body(conv(from, to, 3, 2), nn::BatchNorm2d(to), nn::ReLU(),
             conv(to, to, 3, 1), nn::BatchNorm2d(to)),
        shortcut(conv(from, to, 1, 2), nn::BatchNorm2d(to)) {
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
  return nn::Sequential(conv(1, 16, 3, 2), nn::BatchNorm2d(16), nn::ReLU(),
                        Block(16, 32), Block(32, 64), nn::AdaptiveAvgPool2d(1),
                        nn::Flatten(), nn::Linear(64, kClasses));
}

struct Outcome {
  double accuracy = 0;  // on the test pictures, in percent
  double loss = 0;      // on the test pictures, in nats
  std::uint64_t bytes_sent = 0;
  double rounds = 0;  // share of steps with any exchange
  bool equal = true;  // whether parameters are equal on all ranks
};

void test(nn::Sequential& model, thinwire::torch::Engine& engine,
          const Pictures& pictures, int rank, Outcome& outcome) {
  const auto evaluation = engine.evaluation();
  model->eval();
  const std::int64_t own = pictures.size() / kRanks;
  double right = 0;
  double loss = 0;
  for (std::int64_t at = rank * own; at < (rank + 1) * own; at += kTestBatch) {
    const auto logits =
        model->forward(pictures.images.narrow(0, at, kTestBatch));
    const auto labels = pictures.labels.narrow(0, at, kTestBatch);
    right += (logits.argmax(1) == labels).sum().item<double>();
    loss +=
        nn::functional::cross_entropy(
            logits, labels,
            nn::functional::CrossEntropyFuncOptions().reduction(torch::kSum))
            .item<double>();
  }
  model->train();
  outcome.accuracy = 100 * engine.mean(right / static_cast<double>(own));
  outcome.loss = engine.mean(loss / static_cast<double>(own));
  double squares = 0;
  for (const auto& parameter : model->parameters())
    squares +=
        parameter.detach().to(torch::kDouble).square().sum().item<double>();
  const bool is_equal = squares == engine.mean(squares);
  outcome.equal = engine.mean(is_equal ? 1 : 0) == 1;
}

struct Run {
  thinwire::config::Config config;
  std::int64_t steps = 0;
  std::uint64_t seed = 0;
};

Outcome train(const Run& run, const Pictures& train_set,
              const Pictures& test_set) {
  // Models are made here, since all threads share one random state.
  std::vector<nn::Sequential> models;
  for (int rank = 0; rank < kRanks; ++rank) {
    torch::manual_seed(run.seed);
    models.push_back(resnet());
  }
  Outcome outcome;
  thinwire::comm::run_local_ranks(
      kRanks, [&](thinwire::comm::Communicator& comm) {
        nn::Sequential& model = models[static_cast<std::size_t>(comm.rank())];
        thinwire::torch::Engine engine(*model, comm, run.config);
        Order order(train_set.size(), run.seed);
        Outcome own;
        for (std::int64_t step = 0; step < run.steps; ++step) {
          const auto chosen = order.batch(step, comm.rank());
          engine.backward(nn::functional::cross_entropy(
              model->forward(train_set.images.index_select(0, chosen)),
              train_set.labels.index_select(0, chosen)));
          const auto report = engine.step();
          own.bytes_sent += report.bytes_sent;
          if (report.bytes_sent > 0)
            own.rounds += 1 / static_cast<double>(run.steps);
        }
        test(model, engine, test_set, comm.rank(), own);
        if (comm.rank() == 0) outcome = own;
      });
  return outcome;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    std::cerr << "usage: image_classifier CONFIG PICTURES STEPS SEED\n";
    return 2;
  }
  torch::set_num_threads(1);
  try {
    const Run run{.config = thinwire::config::Config::from_file(argv[1]),
                  .steps = std::stoll(argv[3]),
                  .seed = std::stoull(argv[4])};
    const Outcome outcome =
        train(run, Pictures::load(argv[2], MNIST::Mode::kTrain),
              Pictures::load(argv[2], MNIST::Mode::kTest));
    std::cout << "{\"accuracy\": " << outcome.accuracy
              << ", \"loss\": " << outcome.loss
              << ", \"bytes_sent\": " << outcome.bytes_sent
              << ", \"rounds\": " << outcome.rounds
              << ", \"equal\": " << (outcome.equal ? "true" : "false") << "}\n";
  } catch (const std::exception& error) {
    std::cerr << "image_classifier: " << error.what() << '\n';
    return 1;
  }
}
