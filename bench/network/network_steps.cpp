// SPDX-License-Identifier: Apache-2.0
//   network_steps CONTROL LAYERS WIDTH BATCH TEXT...
//
// Trains train_gpt's model with one optimizer at a time, under mpirun. The file
// CONTROL/thinwire.RANK is a pipe with lines "WHAT STEPS"; rank 0 answers each
// with a line of JSON. WHAT is OPTIMIZER[+KEY=VALUE...] with keys of
// train_gpt's
// --set. "exchange:" before it means steps that compute no gradients. WHAT
// "computing" is a step that exchanges nothing. bench/network/run controls it.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <span>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "examples/train_gpt/model.h"
#include "examples/train_gpt/options/options.h"
#include "examples/train_gpt/options/training_config.h"
#include "examples/train_gpt/text_data.h"
#include "thinwire/comm/registry.h"

namespace {

using namespace thinwire;
using train_gpt::Model;
using Clock = std::chrono::steady_clock;

constexpr std::size_t kContext = 64;
// After these steps few tokens are new, and the variance is that of many
// gradients.
constexpr std::int64_t kExactSteps = 100;
constexpr std::uint64_t kSeed = 1;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

constexpr std::string_view kOnlyExchange = "exchange:";
constexpr std::string_view kComputing = "computing";

struct What {
  bool computes = true;
  std::string optimizer;
  std::vector<std::string> settings{};

  explicit What(std::string_view text) {
    if (text.starts_with(kOnlyExchange)) {
      computes = false;
      text.remove_prefix(kOnlyExchange.size());
    }
    std::istringstream words{std::string(text)};
    std::getline(words, optimizer, '+');
    for (std::string setting; std::getline(words, setting, '+');)
      settings.push_back(setting);
  }
};

// Steps are exact at first, then compressed. 0/1 Adam syncs every fourth step
// at once, as train_gpt's schedule does after a third of a run.
config::Config config_of(const What& what) {
  train_gpt::Options options;
  options.optimizer = what.optimizer;
  options.set = what.settings;
  options.steps = 100'000;
  options.warmup_steps = 0;
  if (what.optimizer.find("onebit") != std::string::npos)
    options.set.insert(
        options.set.begin(),
        fmt::format("optimizer.params.freeze_step={}", kExactSteps));
  config::Config config = train_gpt::training_config(options);
  config.train_micro_batch_size_per_gpu.reset();
  // The fallback would add exchanges, which it measures.
  config.fallback = config::Fallback::kOff;
  if (auto* zero_one =
          std::get_if<optim::ZeroOneAdamOptions>(&config.optimizer)) {
    zero_one->var_freeze_step = kExactSteps;
    zero_one->local_step_scaler = 1;
    zero_one->local_step_clipper = 4;
  }
  return config;
}

// One kind of step, and the model that it trains.
struct Training {
  explicit Training(const train_gpt::ModelShape& shape) : model(shape) {
    model.initialize(kSeed);
  }
  virtual ~Training() = default;
  virtual void prepare() {}                                    // not measured
  virtual double backward(const train_gpt::Batch& batch) = 0;  // the loss
  virtual engine::EngineReport step() = 0;

  Model model;
  std::int64_t steps = 0;
};

struct WholeSteps : Training {
  WholeSteps(comm::Communicator& comm, const train_gpt::ModelShape& shape,
             const config::Config& config)
      : Training(shape) {
    model.train_with(comm, config);
  }
  double backward(const train_gpt::Batch& batch) override {
    return model.backward(batch);
  }
  engine::EngineReport step() override { return model.step(); }
};

// Steps whose gradients are made up.
struct OnlyExchanges : Training {
  OnlyExchanges(comm::Communicator& comm, const train_gpt::ModelShape& shape,
                const config::Config& config)
      : Training(shape),
        made_up(model.layout().size()),
        grads(Buffer::of<float>(made_up.size())),
        engine(comm, model.layout(), config, model.params(), grads.view()) {
    std::minstd_rand random(static_cast<unsigned>(comm.rank()) + 1);
    std::uniform_real_distribution<float> values(-1e-3f, 1e-3f);
    for (float& value : made_up) value = values(random);
  }
  void prepare() override {
    engine.begin_backward();
    std::ranges::copy(made_up, grads.as<float>().begin());
    engine.communicator().barrier();
  }
  double backward(const train_gpt::Batch&) override {
    engine.end_backward();
    return 0;
  }
  engine::EngineReport step() override { return engine.step(); }

  std::vector<float> made_up;
  Buffer grads;
  engine::Engine engine;
};

// The slowest rank's seconds per step, over some steps in a row.
struct Times {
  double all = 0;
  double backward = 0;  ///< Forward and backward.
  double update = 0;    ///< The optimizer's, including exchange and waiting.
  double waiting = 0;   ///< The part of `update` that waits for other ranks.

  std::array<double, 4> values() const {
    return {all, backward, update, waiting};
  }
};

class Steps {
 public:
  Steps(comm::Communicator& comm, const train_gpt::ModelShape& shape,
        std::size_t batch, const std::vector<std::string>& text)
      : comm_(comm),
        alone_(comm.split(comm.rank())),
        shape_(shape),
        text_(text, kContext),
        shard_{.seed = kSeed,
               .rank = static_cast<std::size_t>(comm.rank()),
               .world_size = static_cast<std::size_t>(comm.size()),
               .sequences = batch} {}

  void run(const std::string& what, std::int64_t steps) {
    Training& training = the_training(what);
    // Ranks that exchange begin each step together anyway.
    const bool begins_together = what == kComputing;
    double preparing = 0;
    std::map<std::string, std::int64_t> phases;
    double loss = 0;
    Times times;
    comm_.barrier();
    const std::uint64_t sent = comm_.counters().bytes_sent;
    const auto begin = Clock::now();
    for (std::int64_t i = 0; i < steps; ++i) {
      const auto unprepared = Clock::now();
      training.prepare();
      preparing += seconds_since(unprepared);
      if (begins_together) comm_.barrier();
      const auto before = Clock::now();
      ++training.steps;
      const auto first =
          static_cast<std::int64_t>(shard_.world_size * shard_.sequences *
                                    static_cast<std::size_t>(training.steps));
      loss = training.backward(text_.sequences_from(first, shard_));
      times.backward += seconds_since(before);
      const auto report = training.step();
      times.update += report.seconds;
      times.waiting += report.exchange_seconds;
      ++phases[std::string(to_string(report.phase))];
    }
    times.all = seconds_since(begin) - preparing;
    const std::uint64_t bytes = comm_.counters().bytes_sent - sent;
    std::array<double, 4> slowest = times.values();
    comm_.all_reduce(std::span(slowest), comm::ReduceOp::kMax);
    if (comm_.rank() != 0) return;
    for (double& seconds : slowest) seconds /= static_cast<double>(steps);
    const nlohmann::json answer = {
        {"variant", what},
        {"steps", steps},
        {"seconds", slowest[0]},
        {"backward", slowest[1]},
        {"update", slowest[2]},
        {"waiting", slowest[3]},
        {"payload", static_cast<double>(bytes) / static_cast<double>(steps)},
        {"phases", phases},
        {"loss", loss},
        {"params", training.model.layout().size()}};
    fmt::print("{}\n", answer.dump());
    std::fflush(stdout);
  }

 private:
  // "computing" is exact Adam in a group of one, so that nothing is sent.
  Training& the_training(const std::string& what) {
    auto& training = trainings_[what];
    if (training) return *training;
    const bool alone = what == kComputing;
    const What kind(alone ? "adam" : what);
    comm::Communicator& comm = alone ? *alone_ : comm_;
    if (kind.computes)
      training = std::make_unique<WholeSteps>(comm, shape_, config_of(kind));
    else
      training = std::make_unique<OnlyExchanges>(comm, shape_, config_of(kind));
    return *training;
  }

  comm::Communicator& comm_;
  const std::unique_ptr<comm::Communicator> alone_;
  const train_gpt::ModelShape shape_;
  const train_gpt::TextData text_;
  const train_gpt::Shard shard_;
  std::map<std::string, std::unique_ptr<Training>> trainings_;
};

void serve(const std::vector<std::string>& given) {
  if (given.size() < 5)
    throw std::runtime_error(
        "usage: network_steps CONTROL LAYERS WIDTH BATCH TEXT...");
  const auto comm = comm::from_environment();
  Steps steps(*comm,
              {.layers = std::stoul(given[1]),
               .width = std::stoul(given[2]),
               .heads = 4,
               .context = kContext},
              std::stoul(given[3]), {given.begin() + 4, given.end()});
  // Opening waits for the writer; reading leaves the core to others.
  std::ifstream control(fmt::format("{}/thinwire.{}", given[0], comm->rank()));
  std::string what;
  std::int64_t count = 0;
  while (control >> what >> count) steps.run(what, count);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    serve({argv + 1, argv + argc});
  } catch (const std::exception& error) {
    fmt::print(stderr, "network_steps: {}\n", error.what());
    return 1;
  }
  return 0;
}
