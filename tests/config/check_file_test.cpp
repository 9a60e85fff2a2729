// SPDX-License-Identifier: Apache-2.0
// What becomes of each key of a file, past those that are rejected.
#include <gtest/gtest.h>

#include <fstream>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "support/errors.h"
#include "thinwire/config/config.h"

namespace thinwire::config::check_file_test {
namespace {

using Kind = KeyNote::Kind;

std::vector<KeyNote> checked(std::string_view text,
                             std::optional<int> ranks = std::nullopt) {
  const std::string path = testing::TempDir() + "check_file.json";
  std::ofstream(path) << text;
  return check_file(path, ranks, {"mine"});
}

// The only note about a key; "" for what no single key is rejected for.
KeyNote note_of(const std::vector<KeyNote>& notes, std::string_view path) {
  std::optional<KeyNote> found;
  for (const KeyNote& note : notes) {
    if (note.path != path) continue;
    EXPECT_FALSE(found) << "two notes about " << path;
    found = note;
  }
  EXPECT_TRUE(found) << path;
  return found.value_or(KeyNote{});
}

void expect_rejected(const std::vector<KeyNote>& notes, std::string_view path,
                     std::string_view part) {
  const KeyNote note = note_of(notes, path);
  EXPECT_EQ(note.kind, Kind::kRejected) << path;
  EXPECT_NE(note.note.find(part), std::string::npos) << note.note;
}

TEST(CheckFile, SaysTheValueAndTheStatusOfEachKey) {
  const auto notes = checked(R"({
    "optimizer": {"type": "OneBitAdam", "params": {"freeze_step": 7}},
    "bfloat16": {"enabled": true}, "dump_state": true, "mine": {"a": [1]},
    "gradient_accumulation_steps": "auto"})");
  const KeyNote step = note_of(notes, "optimizer.params.freeze_step");
  EXPECT_EQ(step.kind, Kind::kSupported);
  EXPECT_EQ(step.value, "7");
  EXPECT_EQ(note_of(notes, "optimizer.type").value, "\"OneBitAdam\"");
  EXPECT_EQ(note_of(notes, "bf16.enabled").value, "true");
  EXPECT_EQ(note_of(notes, "mine").value, R"({"a": [1]})");
  const KeyNote dump = note_of(notes, "dump_state");
  EXPECT_EQ(dump.kind, Kind::kIgnored);
  EXPECT_NE(dump.note, "");
  EXPECT_EQ(note_of(notes, "gradient_accumulation_steps").note, "as if absent");
  EXPECT_EQ(note_of(notes, "gradient_clipping").kind, Kind::kAbsent);
}

TEST(CheckFile, ContinuesAfterRejectedKeys) {
  const auto notes = checked(R"({
    "optimizer": {"type": "Adam", "params": {"freeze_step": 7, "lr": 0.5}},
    "zero_optimization": {"stage": 3, "contiguous_gradients": 3},
    "train_batchsize": 8, "steps_per_print": 10, "gradient_clipping": -1})");
  expect_rejected(notes, "gradient_clipping", "got -1");
  expect_rejected(notes, "optimizer.params.freeze_step",
                  "is of OneBitAdam, OneBitLamb, not of Adam");
  expect_rejected(notes, "train_batchsize", "did you mean 'train_batch_size'?");
  expect_rejected(notes, "zero_optimization.contiguous_gradients",
                  "must be true or false");
  expect_rejected(notes, "zero_optimization.stage", "no ZeRO stage 3");
  EXPECT_EQ(note_of(notes, "optimizer.params.lr").kind, Kind::kSupported);
  EXPECT_EQ(note_of(notes, "steps_per_print").kind, Kind::kSupported);
}

// Files are copied with sections that are off, and with values of other
// versions in them.
TEST(CheckFile, IgnoresEveryKeyOfASectionThatIsOff) {
  const auto notes = checked(R"({
    "fp16": {"enabled": false, "auto_cast": true, "loss_scale": -1},
    "bf16": {"bf16_optimizer_states": 17},
    "zero_optimization": {"stage": 0, "reduce_bucket_size": -5,
      "overlap_comm": 17, "contiguous_gradients": 17, "cpu_offload": true,
      "offload_optimizer": {"device": "nvme"},
      "offload_param": {"device": "nvme"}}})");
  for (const KeyNote& note : notes) {
    const bool is_switch =
        note.path == "fp16.enabled" || note.path == "zero_optimization.stage";
    EXPECT_EQ(note.kind, is_switch                          ? Kind::kSupported
                         : note.path == "gradient_clipping" ? Kind::kAbsent
                                                            : Kind::kIgnored)
        << note.path << ": " << note.note;
    EXPECT_EQ(note.note.empty(), is_switch) << note.path;
  }
  EXPECT_EQ(note_of(notes, "fp16.auto_cast").note,
            "the section is not enabled");
  expect_rejected(checked(R"({"fp16": {"enabled": true, "auto_cast": true}})"),
                  "fp16.auto_cast", "rejected");
  // Nobody means a key by a name that is unknown in such a section, either.
  expect_rejected(checked(R"({"fp16": {"enabeld": true}})"), "fp16.enabeld",
                  "did you mean 'enabled'?");
}

TEST(CheckFile, SuggestsKeysThatAreNearOrMeanTheSame) {
  const auto notes = checked(R"({"clip_grad": 1, "max_grad_norm": 1,
    "optimizer": {"params": {"grad_clip": 1}}, "batch_size": 4, "foo": 1})");
  for (const char* name :
       {"clip_grad", "max_grad_norm", "optimizer.params.grad_clip"})
    expect_rejected(notes, name, "did you mean 'gradient_clipping'?");
  expect_rejected(notes, "batch_size", "did you mean 'train_batch_size'?");
  EXPECT_EQ(note_of(notes, "foo").note, "unknown key 'foo'");
}

TEST(CheckFile, RejectsNothingBecauseARejectedKeyIsLeftOut) {
  const auto notes = checked(R"({
    "thinwire": {"semantics": "deepspeed", "auto_freeze": true, "threads": -1},
    "optimizer": {"type": "OneBitAdam", "params": {"freeze_step": 7}},
    "zero_optimization": {"stage": 7, "overlap_comm": true},
    "scheduler": {"type": "Cosine", "params": {"warmup_num_steps": 2}},
    "bf16": {"enabled": 3, "bf16_optimizer_states": true},
    "data_types": {"param_dtype": "bf16"}})");
  std::vector<std::string> rejected;
  for (const KeyNote& note : notes)
    if (note.kind == Kind::kRejected) rejected.push_back(note.path);
  EXPECT_EQ(rejected, (std::vector<std::string>{
                          "thinwire.threads", "zero_optimization.stage",
                          "scheduler.type", "bf16.enabled"}));
  for (const char* path :
       {"zero_optimization.overlap_comm", "bf16.bf16_optimizer_states"})
    EXPECT_EQ(note_of(notes, path).kind, Kind::kSupported) << path;
}

TEST(CheckFile, ContinuesAfterAKeyThatIsMissing) {
  const auto notes = checked(R"({"zero_optimization": {"stage": -1},
    "scheduler": {"type": "OneCycle", "params": {"cycle_momentum": false}}})");
  expect_rejected(notes, "scheduler.params.cycle_min_lr", "must be given");
  expect_rejected(notes, "zero_optimization.stage", "got -1");
}

TEST(CheckFile, ADisabledSectionHidesNoUnknownKey) {
  expect_rejected(checked(R"({"fp16": {"loss_scales": 1}})"),
                  "fp16.loss_scales", "unknown key");
}

TEST(CheckFile, RejectsATypeOnceAndNotTheKeysOfOtherTypes) {
  const auto notes = checked(R"({"optimizer": {"type": "Lion", "params":
    {"freeze_step": 7}}, "scheduler": {"type": "Cosine"}})");
  expect_rejected(notes, "optimizer.type", "must be one of Adam, ");
  expect_rejected(notes, "scheduler.type", "must be one of WarmupLR, ");
  EXPECT_EQ(note_of(notes, "optimizer.params.freeze_step").kind,
            Kind::kSupported);
  for (const char* type : {"1.5", "[]"})
    test::expect_invalid({"optimizer.type must be one of Adam, ", type}, [&] {
      static_cast<void>(Config::from_json(
          R"({"optimizer": {"params": {"freeze_step": 7}, "type": )" +
          std::string(type) + "}}"));
    });
}

TEST(CheckFile, RejectsByTheFilesNameWhatAFieldOfConfigRefuses) {
  const auto notes = checked(R"({"thinwire": {"semantics": "deepspeed"},
    "zero_optimization": {"stage": 2, "offload_optimizer":
      {"device": "cpu"}}})");
  constexpr auto kDevice = "zero_optimization.offload_optimizer.device";
  expect_rejected(notes, kDevice, "none with deepspeed semantics");
  for (const KeyNote& note : notes)
    EXPECT_TRUE(note.path == kDevice || note.kind != Kind::kRejected);
  const auto old = checked(R"({"thinwire": {"semantics": "deepspeed"},
    "zero_optimization": {"stage": 2, "cpu_offload": true}})");
  expect_rejected(old, "zero_optimization.cpu_offload",
                  "none with deepspeed semantics");
  for (const KeyNote& note : old)
    EXPECT_TRUE(note.path == "zero_optimization.cpu_offload" ||
                note.kind != Kind::kRejected);
}

TEST(CheckFile, KnowsWhatAProgramPutsInPlaceOfAuto) {
  const auto notes = checked(R"({"scheduler": {"type": "WarmupDecayLR",
    "params": {"total_num_steps": "auto", "warmup_num_steps": "auto"}}})");
  const KeyNote total = note_of(notes, "scheduler.params.total_num_steps");
  EXPECT_EQ(total.kind, Kind::kSupported);
  EXPECT_EQ(total.value, "\"auto\"");
  EXPECT_EQ(total.note, "auto: from the program");
}

TEST(CheckFile, ChecksWhatDependsOnRanksIfThatIsAsked) {
  constexpr std::string_view kOdd = R"({"train_batch_size": 3})";
  EXPECT_EQ(note_of(checked(kOdd), "train_batch_size").kind, Kind::kSupported);
  expect_rejected(checked(kOdd, 2), "train_batch_size", "3");
  constexpr std::string_view kHosts =
      R"({"thinwire": {"ranks_per_host": 4}, "train_batch_size": 3})";
  EXPECT_EQ(note_of(checked(kHosts), "thinwire.ranks_per_host").kind,
            Kind::kSupported);
  for (const auto ranks : {std::optional<int>(), std::optional(2)})
    expect_rejected(checked(R"({"optimizer": {"type": "OneBitAdam"},
        "fp16": {"enabled": true}, "zero_optimization": {"stage": 1}})",
                            ranks),
                    "zero_optimization.stage", "0 with onebit_adam");
}

TEST(CheckFile, ThrowsForFilesThatAreNotConfigurations) {
  test::expect_invalid({"/nowhere/at/all.json"}, [] {
    static_cast<void>(check_file("/nowhere/at/all.json"));
  });
  for (const char* text : {"{", "[]"})
    test::expect_invalid({"check_file.json: "},
                         [&] { static_cast<void>(checked(text)); });
}

}  // namespace
}  // namespace thinwire::config::check_file_test
