// SPDX-License-Identifier: Apache-2.0
// The table of keys: the reader does what it says, and the guide shows it.
#include "config/keys.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "support/errors.h"

namespace thinwire::config::keys_test {
namespace {

using nlohmann::json;

// A value of every supported key that changes what is read from base_file().
const std::map<std::string_view, json> kSamples = {
    {"thinwire.checkpoint.root", "out/Checkpoints"},
    {"thinwire.checkpoint.every_steps", 500},
    {"thinwire.checkpoint.every", "10min"},
    {"thinwire.checkpoint.keep_last", 3},
    {"thinwire.checkpoint.keep_every", 5000},
    {"thinwire.checkpoint.asynchronous", false},
    {"train_batch_size", 8},
    {"train_micro_batch_size_per_gpu", 8},
    {"gradient_accumulation_steps", 2},
    {"managed_gradient_accumulation", false},
    {"gradient_clipping", 0.25},
    {"prescale_gradients", true},
    {"gradient_predivide_factor", 2},
    {"wall_clock_breakdown", true},
    {"memory_breakdown", true},
    {"steps_per_print", 10},
    {"communication_data_type", "bf16"},
    {"data_types.grad_accum_dtype", "fp16"},
    {"optimizer.type", "Lamb"},
    {"optimizer.params.lr", 0.5},
    {"optimizer.params.betas", {0.5, 0.75}},
    {"optimizer.params.eps", 1e-6},
    {"optimizer.params.weight_decay", 0.5},
    {"optimizer.params.bias_correction", false},
    {"optimizer.params.eps_inside_sqrt", true},
    {"optimizer.params.adam_w_mode", false},
    {"optimizer.params.max_coeff", 5},
    {"optimizer.params.min_coeff", 0.5},
    {"optimizer.params.coeff_beta", 0.5},
    {"optimizer.params.factor_max", 5},
    {"optimizer.params.factor_min", 0.25},
    {"optimizer.params.factor_threshold", 0.5},
    {"optimizer.params.freeze_step", 7},
    {"optimizer.params.var_freeze_step", 7},
    {"optimizer.params.var_update_scaler", 7},
    {"optimizer.params.local_step_scaler", 7},
    {"optimizer.params.local_step_clipper", 7},
    {"optimizer.params.comm_backend_name", "mpi"},
    {"scheduler.type", "LRRangeTest"},
    {"scheduler.params.warmup_min_lr", 0.5},
    {"scheduler.params.warmup_max_lr", 0.5},
    {"scheduler.params.warmup_num_steps", 7},
    {"scheduler.params.warmup_type", "linear"},
    {"scheduler.params.total_num_steps", 7000},
    {"scheduler.params.warmup_min_ratio", 0.5},
    {"scheduler.params.cos_min_ratio", 0.5},
    {"scheduler.params.cycle_min_lr", 0.5},
    {"scheduler.params.cycle_max_lr", 0.5},
    {"scheduler.params.decay_lr_rate", 0.5},
    {"scheduler.params.cycle_first_step_size", 7},
    {"scheduler.params.cycle_second_step_size", 7},
    {"scheduler.params.cycle_first_stair_count", 7},
    {"scheduler.params.cycle_second_stair_count", 7},
    {"scheduler.params.decay_step_size", 7},
    {"scheduler.params.lr_range_test_min_lr", 0.5},
    {"scheduler.params.lr_range_test_step_size", 7},
    {"scheduler.params.lr_range_test_step_rate", 7},
    {"scheduler.params.lr_range_test_staircase", true},
    {"fp16.enabled", false},
    {"fp16.loss_scale", 8},
    {"fp16.initial_scale_power", 8},
    {"fp16.loss_scale_window", 8},
    {"fp16.hysteresis", 8},
    {"fp16.consecutive_hysteresis", true},
    {"fp16.min_loss_scale", 8},
    {"fp16.fp16_master_weights_and_grads", true},
    {"bf16.enabled", true},
    {"bf16.check_grad_overflow", false},
    {"bf16.bf16_master_weights_and_grads", true},
    {"bf16.bf16_optimizer_states", true},
    {"zero_optimization", true},
    {"zero_optimization.stage", 1},
    {"zero_optimization.reduce_scatter", false},
    {"zero_optimization.reduce_bucket_size", 8},
    {"zero_optimization.allgather_bucket_size", 8},
    {"zero_optimization.overlap_comm", false},
    {"zero_optimization.ignore_unused_parameters", false},
    {"zero_optimization.round_robin_gradients", true},
    {"zero_optimization.cpu_offload", true},
    {"zero_optimization.offload_optimizer.device", "cpu"},
    {"thinwire.semantics", "deepspeed"},
    {"thinwire.hierarchy", "by_host"},
    {"thinwire.ranks_per_host", 8},
    {"thinwire.bucket_elements", 8},
    {"thinwire.threads", 8},
    {"thinwire.verify_every", 8},
    {"thinwire.overlap", false},
    {"thinwire.compressed_during_backward", true},
    {"thinwire.lagged_clipping", true},
    {"thinwire.fallback", "hold"},
    {"thinwire.telemetry.path", "out/Steps.jsonl"},
    {"thinwire.telemetry.every", 10},
    {"thinwire.telemetry.every_rank", true},
    {"thinwire.telemetry.residual_every", 100},
    {"thinwire.outer.sync_every", 5},
    {"thinwire.outer.sync_growth", 7},
    {"thinwire.outer.learning_rate", 0.5},
    {"thinwire.outer.momentum", 0.5},
    {"thinwire.outer.bits_up", 8},
    {"thinwire.outer.bits_down", 8},
    {"thinwire.outer.warmup_steps", 7},
    {"thinwire.outer.warmup_bits", 4},
    {"thinwire.zero_bits_up", 4},
    {"thinwire.zero_bits_down", 8},
    {"thinwire.zero_after_skip", "clear"},
    {"thinwire.lean", true},
    {"thinwire.denominator_bits", 4},
    {"thinwire.buffers", "average"},
    {"thinwire.check_grad_overflow", false},
    {"thinwire.initial_loss_scale", 5},
    {"thinwire.max_loss_scale", 131072},
    {"thinwire.at_minimum", "hold"},
    {"thinwire.denom_floor", 0.5},
    {"thinwire.residual_dtype", "fp32"},
    {"thinwire.auto_freeze", true},
    {"thinwire.lr_warmup_steps", 8},
    {"thinwire.total_steps", 8},
    {"thinwire.min_freeze_step", 8},
    {"thinwire.max_freeze_step", 800},
    {"thinwire.freeze_ratio", 0.5},
    {"thinwire.warmup_bits", 8},
    {"thinwire.schedule.decay", "inverse_sqrt"},
    {"thinwire.schedule.warmup", "log"},
    {"thinwire.schedule.warmup_steps", 8},
    {"thinwire.schedule.total_steps", 8},
    {"thinwire.schedule.final_fraction", 0.5},
};

// Keys that say again what others say.
const std::set<std::string_view> kConfirm = {"data_types.param_dtype",
                                             "scheduler.params.cycle_momentum"};

json::json_pointer pointer_to(std::string_view path) {
  std::string pointer = "/" + std::string(path);
  std::replace(pointer.begin(), pointer.end(), '.', '/');
  return json::json_pointer(pointer);
}

// The least file in which the rule's key means something.
json base_file(const KeyRule& rule) {
  json file = json::object();
  const auto first = std::string(rule.only.substr(0, rule.only.find(", ")));
  if (rule.path.starts_with("scheduler.params.")) {
    file["scheduler"]["type"] = first.empty() ? "WarmupLR" : first;
    if (first == "WarmupCosineLR" || rule.path.ends_with("total_num_steps"))
      file["scheduler"]["params"]["total_num_steps"] = 5000;
    if (first == "OneCycle")
      file["scheduler"]["params"] = {
          {"cycle_min_lr", 0}, {"cycle_max_lr", 1}, {"cycle_momentum", false}};
  } else if (!first.empty()) {
    file["optimizer"]["type"] = first;
  }
  if (rule.path.starts_with("bf16.") && rule.path != "bf16.enabled")
    file["bf16"]["enabled"] = true;
  if (rule.path == "bf16.bf16_optimizer_states")
    file["bf16"]["bf16_master_weights_and_grads"] = true;
  if (rule.path.starts_with("thinwire.outer.") &&
      rule.path != "thinwire.outer.sync_every")
    file["thinwire"]["outer"]["sync_every"] = 3;
  if (rule.path == "thinwire.denominator_bits") file["thinwire"]["lean"] = true;
  if (rule.path.starts_with("zero_optimization.") &&
      rule.path != "zero_optimization.stage")
    file["zero_optimization"]["stage"] = 1;
  if (rule.path.starts_with("fp16.") ||
      rule.path == "data_types.grad_accum_dtype")
    file["fp16"]["enabled"] = true;
  if (rule.path == "prescale_gradients" ||
      rule.path == "gradient_predivide_factor") {
    file["fp16"]["enabled"] = true;
    file["thinwire"]["semantics"] = "deepspeed";
  }
  return file;
}

Config read(const json& file, std::vector<KeyNote>* notes = nullptr) {
  return Config::from_json(file.dump(), notes);
}

json with(json file, std::string_view path, json value) {
  file[pointer_to(path)] = std::move(value);
  return file;
}

const KeyNote* find(const std::vector<KeyNote>& notes, std::string_view path) {
  const auto found = std::find_if(notes.begin(), notes.end(), [&](auto& note) {
    return note.path == path;
  });
  return found == notes.end() ? nullptr : &*found;
}

TEST(ConfigKeys, SupportedOnesChangeWhatIsRead) {
  for (const KeyRule& rule : key_rules()) {
    if (rule.status != KeyStatus::kSupported || kConfirm.contains(rule.path))
      continue;
    SCOPED_TRACE(rule.path);
    ASSERT_TRUE(kSamples.contains(rule.path)) << "give it a sample";
    const json base = base_file(rule);
    std::vector<KeyNote> notes;
    const Config changed =
        read(with(base, rule.path, kSamples.at(rule.path)), &notes);
    EXPECT_FALSE(changed == read(base));
    const KeyNote* note = find(notes, rule.path);
    ASSERT_NE(note, nullptr);
    // It is read, and changes no step.
    const bool is_offload = rule.path.find("offload") != std::string_view::npos;
    EXPECT_EQ(note->kind,
              is_offload ? KeyNote::Kind::kIgnored : KeyNote::Kind::kSupported);
  }
}

std::vector<json> values_of(const KeyRule& rule) {
  switch (rule.value) {
    case KeyValue::kBoolean:
      return {true, false};
    case KeyValue::kAny:
      break;
  }
  return {true, 17, "text", {{"enabled", true}, {"more", {1, 2}}}};
}

TEST(ConfigKeys, IgnoredOnesChangeNothing) {
  for (const KeyRule& rule : key_rules()) {
    if (rule.status != KeyStatus::kIgnored) continue;
    SCOPED_TRACE(rule.path);
    const json base = base_file(rule);
    for (const json& value : values_of(rule)) {
      std::vector<KeyNote> notes;
      EXPECT_EQ(read(with(base, rule.path, value), &notes), read(base));
      const KeyNote* note = find(notes, rule.path);
      ASSERT_NE(note, nullptr);
      EXPECT_EQ(note->kind, KeyNote::Kind::kIgnored);
      EXPECT_EQ(note->note, rule.text);
    }
  }
}

TEST(ConfigKeys, RejectedOnesTakeTheirHarmlessValueOnly) {
  for (const KeyRule& rule : key_rules()) {
    if (rule.status != KeyStatus::kRejected) continue;
    SCOPED_TRACE(rule.path);
    const json base = base_file(rule);
    test::expect_error(
        ErrorCode::kInvalidArgument, {rule.path, "rejected", rule.text}, [&] {
          static_cast<void>(
              read(with(base, rule.path, {{"enabled", true}, {"x", 3}})));
        });
    if (rule.harmless.empty()) continue;
    const json harmless = rule.harmless == kDisabled
                              ? json({{"enabled", false}, {"x", 3}})
                              : json::parse(rule.harmless);
    std::vector<KeyNote> notes;
    EXPECT_EQ(read(with(base, rule.path, harmless), &notes), read(base));
    ASSERT_NE(find(notes, rule.path), nullptr);
    EXPECT_EQ(find(notes, rule.path)->kind, KeyNote::Kind::kIgnored);
  }
}

TEST(ConfigKeys, AutoAndNullCountAsAbsent) {
  for (const KeyRule& rule : key_rules()) {
    if (kConfirm.contains(rule.path)) continue;
    SCOPED_TRACE(rule.path);
    json base = base_file(rule);
    if (base.contains(pointer_to(rule.path))) continue;
    for (const json& value : {json("auto"), json(nullptr)}) {
      // config_auto_test.cpp has what the program must know.
      if (value == "auto" && rule.path.ends_with("_num_steps")) continue;
      std::vector<KeyNote> notes;
      EXPECT_EQ(read(with(base, rule.path, value), &notes), read(base));
      ASSERT_NE(find(notes, rule.path), nullptr);
      EXPECT_EQ(find(notes, rule.path)->kind, KeyNote::Kind::kIgnored);
    }
  }
}

TEST(ConfigKeys, AreEachInTheTableOnce) {
  std::set<std::string_view> paths;
  for (const KeyRule& rule : key_rules()) {
    EXPECT_TRUE(paths.insert(rule.path).second) << rule.path;
    EXPECT_FALSE(rule.text.empty()) << rule.path;
  }
  for (const auto& [path, value] : kSamples)
    EXPECT_TRUE(paths.contains(path)) << path << " is no key";
}

TEST(ConfigKeys, SayWhyTheyHaveNoEffect) {
  std::vector<KeyNote> notes;
  const json file = {{"fp16", {{"enabled", false}, {"loss_scale_window", 7}}},
                     {"bf16", {{"check_grad_overflow", false}}}};
  const Config config = read(file, &notes);
  EXPECT_TRUE(config.precision.check_grad_overflow);
  for (const char* path :
       {"fp16.loss_scale_window", "bf16.check_grad_overflow"}) {
    ASSERT_NE(find(notes, path), nullptr);
    EXPECT_NE(find(notes, path)->note.find("not enabled"), std::string::npos);
  }
  notes.clear();
  static_cast<void>(read(
      {{"fp16", {{"enabled", true}, {"loss_scale", 8}, {"hysteresis", 0}}},
       {"zero_optimization",
        {{"stage", 0}, {"reduce_bucket_size", 8}, {"overlap_comm", true}}}},
      &notes));
  const auto note_of = [&](const char* path) {
    const KeyNote* note = find(notes, path);
    return note == nullptr ? std::string("not there") : note->note;
  };
  EXPECT_EQ(note_of("fp16.loss_scale"), "");
  EXPECT_EQ(note_of("fp16.hysteresis"), "the loss scale is static");
  EXPECT_EQ(note_of("zero_optimization.stage"), "");
  EXPECT_EQ(note_of("zero_optimization.reduce_bucket_size"),
            "at stage 0 there is no ZeRO");
  EXPECT_EQ(note_of("zero_optimization.overlap_comm"),
            "at stage 0 there is no ZeRO");
}

TEST(ConfigKeys, StandInTheGuideAsTheyAreInTheCode) {
  const std::string begin = "<!-- keys: begin -->\n";
  const std::string end = "<!-- keys: end -->";
  std::ifstream file(THINWIRE_SOURCE_DIR "/docs/guide/from-deepspeed.md");
  std::ostringstream text;
  text << file.rdbuf();
  const std::string guide = text.str();
  const std::size_t from = guide.find(begin);
  const std::size_t to = guide.find(end);
  ASSERT_TRUE(from != std::string::npos && to != std::string::npos)
      << "the guide has no " << begin;
  const std::string table =
      guide.substr(from + begin.size(), to - from - begin.size());
  EXPECT_TRUE(table == key_table())
      << "put this between the two marks in docs/guide/from-deepspeed.md:\n"
      << key_table();
}

}  // namespace
}  // namespace thinwire::config::keys_test
