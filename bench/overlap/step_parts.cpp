// SPDX-License-Identifier: Apache-2.0
//   step_parts [--zero STAGE] [LAYERS WIDTH BATCH ROUNDS]
//
// Times one exact training step of a small GPT with and without overlap, and
// its parts, interleaved in one run. Runs under mpirun; rank 0 prints.
// bench/overlap/run starts it on emulated hosts.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "examples/train_gpt/model.h"
#include "thinwire/comm/run.h"
#include "thinwire/optim/adam.h"
#include "thinwire/zero/zero_optimizer.h"

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
  std::size_t zero = 0;  // stage
};

// One kind of work and its time in each round, on the slowest rank.
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

// Seconds in the middle round and in the fastest one. The fastest says more on
// a machine with other work to do.
struct Seconds {
  double middle = 0;
  double least = 0;

  static Seconds of(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    return {values[values.size() / 2], values.front()};
  }
};

Seconds operator+(const Seconds& a, const Seconds& b) {
  return {a.middle + b.middle, a.least + b.least};
}

// Returns at least 0: noise may make the longer of two parts seem shorter.
Seconds operator-(const Seconds& a, const Seconds& b) {
  return {std::max(0.0, a.middle - b.middle), std::max(0.0, a.least - b.least)};
}

Seconds max(const Seconds& a, const Seconds& b) {
  return {std::max(a.middle, b.middle), std::max(a.least, b.least)};
}

// Returns the times in the order of `parts`, which take turns at being first.
std::vector<Seconds> measure(comm::Communicator& comm, std::size_t rounds,
                             std::vector<Part>& parts) {
  for (Part& part : parts) part.run();  // warm-up
  for (std::size_t round = 0; round < rounds; ++round)
    for (std::size_t i = 0; i < parts.size(); ++i)
      parts[(i + round) % parts.size()].measure(comm);
  std::vector<Seconds> all;
  for (const Part& part : parts) all.push_back(Seconds::of(part.seconds));
  return all;
}

void wait_for(const std::vector<comm::Work>& queued) {
  for (const comm::Work& work : queued) work.wait();
}

void print(const std::string& name, const Seconds& of) {
  fmt::print("{:<44} {:8.1f} ms, least {:8.1f} ms\n", name, of.middle * 1e3,
             of.least * 1e3);
}

void print_ratio(const std::string& name, const Seconds& of,
                 const Seconds& limit) {
  fmt::print("{:<44} {:8.2f}   , least {:8.2f}\n", name + ", of that",
             of.middle / limit.middle, of.least / limit.least);
}

config::Config config_of(const Sizes& sizes, bool overlap) {
  config::Config config{.gradient_clipping = 1};
  config.comm.overlap = overlap;
  config.zero.stage = static_cast<int>(sizes.zero);
  return config;
}

Batch batch_of(const Sizes& sizes) {
  Batch batch{.sequences = sizes.batch, .context = kContext, .bytes = {}};
  for (std::size_t i = 0; i < sizes.batch * (kContext + 1); ++i)
    batch.bytes.push_back(static_cast<std::uint8_t>(i * 7 % 96 + 32));
  return batch;
}

class Bench {
 public:
  Bench(comm::Communicator& comm, const Sizes& sizes)
      : comm_(comm),
        sizes_(sizes),
        alone_(comm.split(comm.rank())),
        batch_(batch_of(sizes)),
        plain_(shape()) {
    plain_.initialize(1);
  }

  void run() {
    if (comm_.rank() == 0)
      fmt::print("{} ranks, {} parameters, {} rounds, ZeRO stage {}\n",
                 comm_.size(), plain_.layout().size(), sizes_.rounds,
                 sizes_.zero);
    sizes_.zero == 0 ? measure_replicated() : measure_sharded();
  }

 private:
  [[nodiscard]] ModelShape shape() const {
    return {.layers = sizes_.layers,
            .width = sizes_.width,
            .heads = 4,
            .context = kContext};
  }
  [[nodiscard]] std::unique_ptr<Model> training_model(comm::Communicator& comm,
                                                      bool overlap) const {
    auto model = std::make_unique<Model>(shape());
    model->initialize(1);
    model->train_with(comm, config_of(sizes_, overlap));
    return model;
  }
  [[nodiscard]] Part forward() {
    return {"forward", [this] { (void)plain_.loss_sum(batch_); }};
  }
  [[nodiscard]] Part forward_and_backward() {
    return {"forward + backward", [this] { plain_.backward(batch_); }};
  }
  [[nodiscard]] Part step(const std::string& name, Model& model) {
    return {name, [this, &model] {
              model.backward(batch_);
              model.step();
            }};
  }
  void measure_replicated();
  void measure_sharded();

  comm::Communicator& comm_;
  const Sizes sizes_;
  const std::unique_ptr<comm::Communicator> alone_;
  const Batch batch_;
  Model plain_;
};

void Bench::measure_replicated() {
  const auto overlapped = training_model(comm_, true);
  const auto one_by_one = training_model(comm_, false);
  const auto updated = training_model(*alone_, false);
  std::vector<float> gradient(plain_.layout().size(), 1.0f);
  const std::size_t bucket = std::size_t{1} << 20;

  std::vector<Part> parts = {
      forward(),
      forward_and_backward(),
      {"gradient exchange",
       [&] {
         std::vector<comm::Work> queued;
         for (std::size_t at = 0; at < gradient.size(); at += bucket)
           queued.push_back(comm_.queue_all_reduce(std::span(gradient).subspan(
               at, std::min(bucket, gradient.size() - at))));
         wait_for(queued);
       }},
      step("forward + backward + update", *updated),
      step("step without overlap", *one_by_one),
      step("step with overlap", *overlapped)};
  const std::vector<Seconds> of = measure(comm_, sizes_.rounds, parts);
  if (comm_.rank() != 0) return;
  for (std::size_t i = 0; i < parts.size(); ++i) print(parts[i].name, of[i]);
  const Seconds limit = of[0] + max(of[1] - of[0], of[2]) + (of[3] - of[1]);
  print("forward + max(backward, exchange) + update", limit);
  print_ratio("with overlap", of[5], limit);
  print_ratio("without overlap", of[4], limit);
}

void Bench::measure_sharded() {
  const auto overlapped = training_model(comm_, true);
  const auto one_by_one = training_model(comm_, false);
  const zero::ShardLayout& shards = overlapped->engine().zero().shards();
  const auto rank = static_cast<std::size_t>(comm_.rank());
  std::vector<float> all(plain_.layout().size(), 1e-3f);
  std::vector<float> own(shards.shard_size(comm_.rank()), 1e-3f);
  std::vector<float> params = own;

  // The update of this rank alone, without other ranks: norm and Adam.
  const config::Config config = config_of(sizes_, true);
  const ParameterLayout own_layout =
      shards.layout_of_shard(plain_.layout(), comm_.rank());
  zero::ZeroOptimizer update(*alone_, own_layout,
                             [](const ParameterLayout& layout) {
                               return std::make_unique<optim::Adam>(
                                   layout, optim::AdamOptions());
                             },
                             params, {.exchange = config.exchange_options()});

  const auto for_buckets = [&](auto&& queue) {
    std::vector<comm::Work> queued;
    for (const zero::ShardBucket& bucket : shards.buckets())
      queued.push_back(queue(
          bucket,
          std::span(all).subspan(bucket.range.offset, bucket.range.size)));
    wait_for(queued);
  };
  std::vector<Part> parts = {
      forward(),
      forward_and_backward(),
      {"gradient exchange",
       [&] {
         for_buckets(
             [&](const zero::ShardBucket& bucket, std::span<float> values) {
               return comm_.queue_reduce_scatter(
                   values,
                   std::span(own).subspan(bucket.positions[rank],
                                          bucket.counts[rank]),
                   bucket.counts);
             });
       }},
      {"update", [&] { update.step({.params = params, .grads = own}); }},
      {"parameter gather",
       [&] {
         for_buckets(
             [&](const zero::ShardBucket& bucket, std::span<float> values) {
               const Range& piece = bucket.pieces[rank];
               return comm_.queue_all_gather(
                   std::span(all).subspan(piece.offset, piece.size), values,
                   bucket.counts);
             });
       }},
      step("step without overlap", *one_by_one),
      step("step with overlap", *overlapped)};
  const std::vector<Seconds> of = measure(comm_, sizes_.rounds, parts);
  if (comm_.rank() != 0) return;
  for (std::size_t i = 0; i < parts.size(); ++i) print(parts[i].name, of[i]);
  const Seconds limit = of[0] + max(of[1] - of[0], of[2]) + max(of[3], of[4]);
  print("forward + max(b., exchange) + max(u., gather)", limit);
  print_ratio("with overlap", of[6], limit);
  print_ratio("without overlap", of[5], limit);
}

}  // namespace

int main(int argc, char** argv) {
  Sizes sizes;
  std::vector<std::size_t*> fields = {&sizes.rounds, &sizes.batch, &sizes.width,
                                      &sizes.layers};
  for (int i = 1; i < argc; ++i) {
    const bool is_zero = std::string(argv[i]) == "--zero" && i + 1 < argc;
    if (!is_zero && fields.empty()) break;
    std::size_t& field = is_zero ? sizes.zero : *fields.back();
    if (!is_zero) fields.pop_back();
    field = static_cast<std::size_t>(
        std::strtoull(argv[is_zero ? ++i : i], nullptr, 10));
  }
  return comm::run([&](comm::Communicator& comm) { Bench(comm, sizes).run(); });
}
