// SPDX-License-Identifier: Apache-2.0
// The files in examples/configs/, field by field.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "thinwire/config/config.h"

namespace thinwire::config::examples_test {
namespace {

Config example(const std::string& name, std::vector<KeyNote>* notes = nullptr) {
  return Config::from_file(
      THINWIRE_SOURCE_DIR "/examples/configs/" + name + ".json", notes);
}

// The keys that were ignored, in the order of the file.
std::vector<std::string> ignored(const std::vector<KeyNote>& notes) {
  std::vector<std::string> paths;
  for (const KeyNote& note : notes)
    if (note.kind == KeyNote::Kind::kIgnored) paths.push_back(note.path);
  return paths;
}

TEST(ExampleConfigs, OnebitAdam) {
  std::vector<KeyNote> notes;
  const Config config = example("onebit_adam_bert", &notes);
  config.validate(4);
  const Config expected{
      .optimizer = optim::OnebitAdamOptions{.learning_rate = 4e-4,
                                            .weight_decay = 0.01,
                                            .bias_correction = false,
                                            .freeze = {.step = 2300}},
      .precision = {.dtype = DType::kFloat16},
      .gradient_clipping = 1,
      .train_batch_size = 256,
      .train_micro_batch_size_per_gpu = 16,
      .schedule = {WarmupLr{.warmup_max_lr = 4e-4,
                            .warmup_num_steps = 1250,
                            .warmup_type = Warmup::kLinear}},
      .comm = {.backend = CommBackend::kNccl},
      .steps_per_print = 100};
  EXPECT_EQ(config, expected);
  EXPECT_EQ(config.batch(4),
            (BatchSizes{.train = 256, .micro = 16, .accumulation_steps = 4}));
  EXPECT_EQ(ignored(notes),
            (std::vector<std::string>{"optimizer.params.cuda_aware",
                                      "prescale_gradients"}));
  EXPECT_EQ(notes.size(), 25u);
}

TEST(ExampleConfigs, OnebitLamb) {
  std::vector<KeyNote> notes;
  const Config config = example("onebit_lamb_bert", &notes);
  config.validate(8);
  const Config expected{
      .optimizer = optim::OnebitLambOptions{.learning_rate = 11e-3,
                                            .weight_decay = 0.01,
                                            .bias_correction = false,
                                            .max_coeff = 0.3,
                                            .min_coeff = 0.01,
                                            .coeff_beta = 0.9,
                                            .factor_max = 4,
                                            .factor_min = 0.5,
                                            .factor_threshold = 0.1,
                                            .freeze = {.step = 1000}},
      .precision = {.dtype = DType::kFloat16},
      .gradient_clipping = 1,
      .train_batch_size = 4096,
      .train_micro_batch_size_per_gpu = 16,
      .gradient_accumulation_steps = 32,
      .comm = {.backend = CommBackend::kNccl},
      .steps_per_print = 100};
  EXPECT_EQ(config, expected);
  EXPECT_EQ(ignored(notes),
            (std::vector<std::string>{"optimizer.params.cuda_aware"}));
}

TEST(ExampleConfigs, ZeroOneAdam) {
  std::vector<KeyNote> notes;
  const Config config = example("zero_one_adam_bert", &notes);
  config.validate(2);
  const Config expected{
      .optimizer = optim::ZeroOneAdamOptions{.learning_rate = 4e-4,
                                             .weight_decay = 0.01,
                                             .bias_correction = false,
                                             .var_freeze_step = 1000,
                                             .var_update_scaler = 16,
                                             .local_step_scaler = 1000,
                                             .local_step_clipper = 16},
      .precision = {.dtype = DType::kBFloat16},
      .gradient_clipping = 1,
      .train_micro_batch_size_per_gpu = 64,
      .gradient_accumulation_steps = 1,
      .schedule = {WarmupDecayLr{.total_num_steps = 15'000,
                                 .warmup_max_lr = 4e-4,
                                 .warmup_num_steps = 1250}},
      .comm = {.backend = CommBackend::kNccl},
      .steps_per_print = 1000};
  EXPECT_EQ(config, expected);
  EXPECT_EQ(config.batch(2).train, 128);
  EXPECT_EQ(ignored(notes),
            (std::vector<std::string>{"optimizer.params.cuda_aware"}));
}

}  // namespace
}  // namespace thinwire::config::examples_test
