// SPDX-License-Identifier: Apache-2.0
// step_parts [LAYERS WIDTH BATCH ROUNDS]: what one exact training step of a
// small GPT takes with and without overlap, and its parts, interleaved in one
// run. Under mpirun; rank 0 prints. bench/overlap/run starts it on emulated
// hosts.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "apps/train_gpt/model.h"
#include "thinwire/comm/registry.h"

namespace {

using namespace thinwire;
using train_gpt::Batch;
using train_gpt::Model;
using train_gpt::ModelShape;

constexpr std::size_t kContext = 64;

struct Sizes {
  std::size_t layers = 4;
  std::size_t width = 256;
  std::size_t batch = 8;
  std::size_t rounds = 15;
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// One kind of work and what it took in each round, the slowest rank's time.
struct Part {
  std::string name;
  std::function<void()> run;
  std::vector<double> seconds{};

  void measure(comm::Communicator& comm) {
    comm.barrier();
    const auto begin = std::chrono::steady_clock::now();
    run();
    const std::chrono::duration<double> own =
        std::chrono::steady_clock::now() - begin;
    double slowest = own.count();
    comm.all_reduce(std::span(&slowest, 1), comm::ReduceOp::kMax);
    seconds.push_back(slowest);
  }
};

std::unique_ptr<Model> training_model(const ModelShape& shape,
                                      comm::Communicator& comm, bool overlap) {
  auto model = std::make_unique<Model>(shape);
  model->initialize(1);
  engine::Config config{.gradient_clipping = 1};
  config.comm.overlap = overlap;
  model->train_with(comm, config);
  return model;
}

void measure(comm::Communicator& comm, const Sizes& sizes) {
  const ModelShape shape{.layers = sizes.layers,
                         .width = sizes.width,
                         .heads = 4,
                         .context = kContext};
  const auto alone = comm.split(comm.rank());
  Model plain(shape);
  plain.initialize(1);
  const auto overlapped = training_model(shape, comm, true);
  const auto one_by_one = training_model(shape, comm, false);
  const auto updated = training_model(shape, *alone, false);

  Batch batch{.sequences = sizes.batch, .context = kContext, .bytes = {}};
  for (std::size_t i = 0; i < sizes.batch * (kContext + 1); ++i)
    batch.bytes.push_back(static_cast<std::uint8_t>(i * 7 % 96 + 32));
  std::vector<float> gradient(plain.layout().size(), 1.0f);
  const std::size_t bucket = engine::CommConfig().bucket_elements;

  const auto step = [&](Model& model) {
    model.backward(batch);
    model.step();
  };
  std::vector<Part> parts = {
      {"forward", [&] { (void)plain.loss_sum(batch); }},
      {"forward + backward", [&] { plain.backward(batch); }},
      {"gradient exchange",
       [&] {
         std::vector<comm::Work> queued;
         for (std::size_t at = 0; at < gradient.size(); at += bucket)
           queued.push_back(comm.queue_all_reduce(std::span(gradient).subspan(
               at, std::min(bucket, gradient.size() - at))));
         for (const comm::Work& work : queued) work.wait();
       }},
      {"forward + backward + update", [&] { step(*updated); }},
      {"step without overlap", [&] { step(*one_by_one); }},
      {"step with overlap", [&] { step(*overlapped); }}};
  for (Part& part : parts) part.run();  // warm
  for (std::size_t round = 0; round < sizes.rounds; ++round)
    for (std::size_t i = 0; i < parts.size(); ++i)
      parts[(i + round) % parts.size()].measure(comm);

  std::vector<double> of;
  for (const Part& part : parts) of.push_back(median(part.seconds));
  if (comm.rank() != 0) return;
  fmt::print("{} ranks, {} parameters, {} rounds\n", comm.size(),
             gradient.size(), sizes.rounds);
  for (std::size_t i = 0; i < parts.size(); ++i)
    fmt::print("{:<28} {:8.1f} ms\n", parts[i].name, of[i] * 1e3);
  const double backward = of[1] - of[0];
  const double update = std::max(0.0, of[3] - of[1]);
  const double limit = of[0] + std::max(backward, of[2]) + update;
  fmt::print("{:<28} {:8.1f} ms\n",
             "forward + max(backward, exchange) + update", limit * 1e3);
  fmt::print("with overlap {:.2f}, without {:.2f} of that\n", of[5] / limit,
             of[4] / limit);
}

}  // namespace

int main(int argc, char** argv) {
  Sizes sizes;
  const std::vector<std::size_t*> fields = {&sizes.layers, &sizes.width,
                                            &sizes.batch, &sizes.rounds};
  for (int i = 1; i < argc && i <= 4; ++i)
    *fields[static_cast<std::size_t>(i - 1)] =
        static_cast<std::size_t>(std::strtoull(argv[i], nullptr, 10));
  try {
    const auto comm = comm::from_environment();
    measure(*comm, sizes);
  } catch (const std::exception& error) {
    fmt::print(stderr, "step_parts: {}\n", error.what());
    return 1;
  }
  return 0;
}
