// SPDX-License-Identifier: Apache-2.0
//   changing_text OPTIMIZER TEXT SEED FILE
//
// Trains train_gpt's model on a text that changes half-way through the run,
// long after the freeze. Letters then become bytes above 127 in half of the
// windows, so rows of the byte tables get their first gradient. TEXT is
// "changing"; "masked" if these rows stay masked; or "plain" if nothing
// changes. Prints the losses as a line of JSON; changing_text.py runs it.
#include <fmt/format.h>

#include <array>
#include <cctype>
#include <iostream>
#include <string>
#include <variant>
#include <vector>

#include "examples/train_gpt/model.h"
#include "examples/train_gpt/options/training_config.h"
#include "examples/train_gpt/text_data.h"
#include "thinwire/comm/local.h"
#include "thinwire/core/error.h"

namespace {

using namespace thinwire;
using train_gpt::Batch;
using train_gpt::Model;
using train_gpt::Options;
using train_gpt::TextData;

constexpr int kRanks = 4;
constexpr std::int64_t kChange = 201;  // the first step with other letters

struct Run {
  Options options;
  bool changes = true;
  bool revives = true;
};

Options options_of(const std::string& optimizer, std::uint64_t seed) {
  Options options;
  options.optimizer = optimizer;
  options.seed = seed;
  options.steps = 400;
  options.layers = 2;
  options.width = 64;
  options.freeze_step = 100;
  if (optimizer == "zero_one_adam")
    options.set = {"optimizer.params.var_freeze_step=100"};
  options.lr = optimizer == "lamb" || optimizer == "onebit_lamb" ? 1e-2 : 4e-3;
  return options;
}

// Changes the letters of every second sequence.
void change_letters(Batch& batch, std::size_t first_changed) {
  const std::size_t length = batch.context + 1;
  for (std::size_t s = first_changed; s < batch.sequences; s += 2)
    for (std::size_t i = s * length; i < (s + 1) * length; ++i)
      if (std::isalpha(batch.bytes[i]) != 0) batch.bytes[i] |= 0x80;
}

Batch training_batch(const TextData& data, const Run& run, std::size_t rank,
                     std::int64_t step) {
  constexpr std::size_t kSequences = 8;  // per rank
  Batch batch = data.sequences_from(step * std::int64_t{kRanks * kSequences},
                                    {.seed = run.options.seed,
                                     .rank = rank,
                                     .world_size = kRanks,
                                     .sequences = kSequences});
  if (run.changes && step >= kChange) change_letters(batch, 1);
  return batch;
}

// Returns 0 for the rows of the byte tables that no window reads before the
// freeze. A mask of the user holds for ever, so these rows are never activated.
std::vector<float> mask_of_unread_rows(const ParameterLayout& layout,
                                       const TextData& data, const Run& run) {
  constexpr std::size_t kTables = 3;
  std::array<std::array<bool, 256>, kTables> read{};
  for (std::int64_t step = 1; step <= run.options.freeze_step; ++step)
    for (std::size_t rank = 0; rank < kRanks; ++rank) {
      const Batch batch = training_batch(data, run, rank, step);
      for (std::size_t i = 0; i < batch.bytes.size(); ++i) {
        const std::size_t at = i % (batch.context + 1);
        for (std::size_t back = 0; back < kTables; ++back)
          if (at + back < batch.context) read[back][batch.bytes[i]] = true;
      }
    }
  for (std::size_t back = 1; back < kTables; ++back) read[back][0] = true;
  std::vector<float> mask(layout.size(), 1.0f);
  for (std::size_t back = 0; back < kTables; ++back) {
    const std::string name = fmt::format("byte_{}.weight", back);
    for (const Parameter& p : layout.parameters())
      if (p.name == name)
        for (std::size_t i = 0; i < p.size; ++i)
          if (!read[back][i / (p.size / 256)]) mask[p.offset + i] = 0;
  }
  return mask;
}

void set_mask(config::Config& config, const std::vector<float>& mask) {
  std::visit(
      [&](auto& optimizer) {
        if constexpr (requires { optimizer.groups[0].exp_avg_mask; }) {
          optimizer.groups.resize(1);
          optimizer.groups[0].exp_avg_mask = mask;
        } else {
          throw Error(ErrorCode::kInvalidArgument,
                      "masked: an exact optimizer revives nothing");
        }
      },
      config.optimizer);
}

// Returns the loss of plain windows, then of changed ones, over all ranks, in
// nats per byte.
std::array<double, 2> validate(Model& model, const TextData& data,
                               comm::Communicator& comm) {
  const train_gpt::Piece piece = train_gpt::piece_of(
      data.validation_windows(), static_cast<std::size_t>(comm.rank()), kRanks);
  std::array<double, 2> sums{};
  for (std::size_t i = 0; i < piece.count; ++i) {
    const std::size_t window = piece.first + i;
    for (std::size_t changed = 0; changed < 2; ++changed) {
      Batch batch = data.validation_batch(window, 1);
      if (changed == 1) change_letters(batch, 0);
      sums[changed] += model.loss_sum(batch);
    }
  }
  std::vector<double> all(2 * kRanks);
  comm.all_gather(std::span<const double>(sums), std::span(all));
  const auto bytes =
      static_cast<double>(data.validation_windows() * model.context());
  std::array<double, 2> losses{};
  for (std::size_t i = 0; i < all.size(); ++i) losses[i % 2] += all[i] / bytes;
  return losses;
}

void train(const Run& run) {
  const Options& options = run.options;
  const TextData data(options.data, options.context);
  const config::Config config = train_gpt::training_config(options);
  comm::run_local_ranks(kRanks, [&](comm::Communicator& comm) {
    Model model({.layers = options.layers, .width = options.width});
    if (comm.rank() == 0) model.initialize(options.seed);
    config::Config own = config;
    if (!run.revives)
      set_mask(own, mask_of_unread_rows(model.layout(), data, run));
    model.train_with(comm, own);
    for (std::int64_t step = 1; step <= options.steps; ++step) {
      model.backward(training_batch(
          data, run, static_cast<std::size_t>(comm.rank()), step));
      model.step();
    }
    model.engine().begin_evaluation();
    const auto [plain, changed] = validate(model, data, comm);
    if (comm.rank() == 0)
      std::cout << fmt::format(
          "{{\"loss\": {:.6g}, \"plain\": {:.6g}, \"changed\": {:.6g}}}\n",
          run.changes ? (plain + changed) / 2 : plain, plain, changed);
  });
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    std::cerr << "usage: changing_text OPTIMIZER changing|masked|plain SEED "
                 "FILE\n";
    return 2;
  }
  const std::string text = argv[2];
  try {
    Run run{.options = options_of(argv[1], std::stoull(argv[3])),
            .changes = text != "plain",
            .revives = text != "masked"};
    run.options.data = {argv[4]};
    train(run);
  } catch (const std::exception& error) {
    std::cerr << "changing_text: " << error.what() << '\n';
    return 1;
  }
}
