// SPDX-License-Identifier: Apache-2.0
// The table of keys: the reader does what it says, and the guide shows it.
#include "config/keys.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <sstream>

#include "support/errors.h"

namespace thinwire::config::keys_test {
namespace {

using nlohmann::json;

// For every supported key one of these changes what is read from base_file().
const json kSamples[] = {
    true,          false,   8,         5,           4,           2,
    7000,          0.5,     0.25,      "mpi",       "fp16",      "bf16",
    "10min",       "cpu",   "by_host", "deepspeed", "log",       "hold",
    "average",     "clear", "linear",  "Lamb",      {0.5, 0.75}, "LRRangeTest",
    "inverse_sqrt"};

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
  if (rule.path == "thinwire.first_steps" || rule.path == "thinwire.first_bits")
    file["thinwire"]["low_rank"] = 8;
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
  if (rule.path == "zero_optimization.reduce_scatter" ||
      rule.path == "zero_optimization.round_robin_gradients")
    file["thinwire"]["semantics"] = "deepspeed";
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

// The key's note in the first file with a sample that is read as another one
// than base_file().
std::optional<KeyNote> note_of_a_change(const KeyRule& rule) {
  const json base = base_file(rule);
  for (const json& sample : kSamples) {
    try {
      std::vector<KeyNote> notes;
      const Config changed = read(with(base, rule.path, sample), &notes);
      const KeyNote* note = find(notes, rule.path);
      if (note != nullptr && !(changed == read(base))) return *note;
    } catch (const Error&) {  // a value of other keys
    }
  }
  return std::nullopt;
}

TEST(ConfigKeys, SupportedOnesChangeWhatIsRead) {
  for (const KeyRule& rule : key_rules()) {
    if (rule.status != KeyStatus::kSupported || kConfirm.contains(rule.path))
      continue;
    SCOPED_TRACE(rule.path);
    const std::optional<KeyNote> note = note_of_a_change(rule);
    ASSERT_TRUE(note) << "no sample changes anything";
    // It is read, and changes no step.
    const bool is_offload = rule.path.find("offload") != std::string_view::npos;
    EXPECT_EQ(note->kind,
              is_offload ? KeyNote::Kind::kIgnored : KeyNote::Kind::kSupported);
  }
}

std::vector<json> values_of(const KeyRule& rule) {
  if (rule.is_switch) return {true, false};
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
    test::expect_invalid({rule.path, "rejected", rule.text}, [&] {
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
      // auto_test.cpp has what the program must know.
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

// The guide's table.
std::string key_table() {
  constexpr const char* kStatuses[] = {"supported", "ignored (no effect)",
                                       "rejected"};
  std::string text = "| key | | what happens |\n|---|---|---|\n";
  for (const KeyRule& rule : key_rules()) {
    std::string exception;
    if (!rule.harmless.empty())
      exception = rule.harmless == kDisabled
                      ? ", unless not `enabled`"
                      : fmt::format(", unless `{}`", rule.harmless);
    text += fmt::format(
        "| `{}` | {}{} | {}{} |\n", rule.path,
        kStatuses[static_cast<std::size_t>(rule.status)], exception, rule.text,
        rule.only.empty() ? "" : fmt::format(" ({})", rule.only));
  }
  return text;
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
