// SPDX-License-Identifier: Apache-2.0
// Files that are rejected, and that the message says where and why.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "support/errors.h"
#include "support/mutator.h"
#include "thinwire/config/config.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data,
                                      std::size_t size);

namespace thinwire::config::errors_test {
namespace {

struct Refusal {
  const char* text;
  std::vector<std::string> parts;
};

const Refusal kRefusals[] = {
    // Not JSON, or not of the right kind.
    {"", {"not JSON"}},
    {"[]", {"must be a JSON object", "[]"}},
    {"{} {}", {"not JSON"}},
    {"{\"steps_per_print\": 1 // often\n}", {"comment", "line 1"}},
    {"{\n# DeepSpeed's parser would take this\n}", {"comment", "line 2"}},
    {R"({"gradient_clipping": NaN})", {"not JSON"}},
    {R"({"gradient_clipping": 1e999})", {"not JSON", "1e999"}},
    {R"({"fp16": {"enabled": true, "enabled": false}})",
     {"\"enabled\"", "duplicate"}},
    {R"({"a": [[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]})",
     {"32 deep"}},
    // Unknown keys.
    {R"({"fp16": {"inital_scale_power": 12}})",
     {"unknown key 'fp16.inital_scale_power'; did you mean "
      "'initial_scale_power'?"}},
    {R"({"train_batchsize": 8})", {"'train_batch_size'?"}},
    {R"({"freeze_step": 8})", {"'optimizer.params.freeze_step'?"}},
    {R"({"optimizer": {"type": "Adam", "param": {}}})",
     {"optimizer.param'", "'params'?"}},
    {R"({"zero_optimization": {"offload_optimizer": {"pinmemory": true}}})",
     {"'zero_optimization.offload_optimizer.pinmemory'", "'pin_memory'?"}},
    {R"({"thinwire": {"bucket_element": 1}})", {"'bucket_elements'?"}},
    {R"({"": 1})", {"unknown key"}},
    {R"({"thinwire": {"checkpoint": {"keep_lats": 1}}})", {"'keep_last'?"}},
    {R"({"thinwire": {"checkpoint": {"every": 600}}})",
     {"thinwire.checkpoint.every must be a positive integer with a unit ms, s, "
      "min or h",
      "got 600"}},
    {R"({"thinwire": {"checkpoint": {"every": "10 minutes"}}})",
     {"thinwire.checkpoint.every", "10 minutes"}},
    {R"({"thinwire": {"checkpoint": {"root": ["out"]}}})",
     {"thinwire.checkpoint.root must be a text that is not empty"}},
    {R"({"thinwire": {"checkpoint": {"keep_last": -1}}})",
     {"thinwire.checkpoint.keep_last", ">= 0", "-1"}},
    // Keys of another type of optimizer.
    {R"({"optimizer": {"type": "Adam", "params": {"freeze_step": 8}}})",
     {"optimizer.params.freeze_step is of OneBitAdam, OneBitLamb, not of "
      "Adam"}},
    {R"({"optimizer": {"type": "OneBitAdam", "params": {"freeze_step": 0}}})",
     {"optimizer.params.freeze_step must be an integer >= 1, got 0"}},
    {R"({"optimizer": {"type": "OneBitAdam", "params": {"max_coeff": 8}}})",
     {"optimizer.params.max_coeff", "Lamb", "OneBitAdam"}},
    {R"({"thinwire": {"denom_floor": 0}})",
     {"thinwire.denom_floor", "not of AdamW"}},
    {R"({"scheduler": {"type": "WarmupLR", "params": {"total_num_steps": 8}}})",
     {"scheduler.params.total_num_steps", "not of WarmupLR"}},
    {R"({"scheduler": {"type": "Cosine"}})",
     {"scheduler.type", "WarmupCosineLR", "Cosine"}},
    {R"({"optimizer": {"type": "SGD"}})",
     {"optimizer.type", "ZeroOneAdam", "SGD"}},
    {R"({"optimizer": {"type": 3}})", {"optimizer.type", "3"}},
    // Wrong types and ranges.
    {R"({"gradient_clipping": true})",
     {"gradient_clipping must be a finite number >= 0, got true"}},
    {R"({"gradient_clipping": -1})", {"gradient_clipping", ">= 0", "-1"}},
    {R"({"train_batch_size": 0})", {"train_batch_size", ">= 1", "0"}},
    {R"({"train_batch_size": 2.5})",
     {"train_batch_size must be an integer", "2.5"}},
    {R"({"train_batch_size": "8"})", {"train_batch_size", "\"8\""}},
    {R"({"train_batch_size": 1e30})", {"train_batch_size", "1e+30"}},
    {R"({"fp16": 1})", {"fp16 must be an object, got 1"}},
    {R"({"fp16": {"enabled": 1}})",
     {"fp16.enabled must be true or false, got 1"}},
    {R"({"fp16": {"enabled": true, "initial_scale_power": 2000}})",
     {"fp16.initial_scale_power", "[0, 127]", "2000"}},
    {R"({"fp16": {"enabled": true, "loss_scale": 1e300}})",
     {"fp16.loss_scale", "[0, 1.7", "1e+300"}},
    {R"({"fp16": {"enabled": true, "loss_scale": 1e-300}})",
     {"initial_scale", "[2^-126, 2^127]", "1e-300"}},
    {R"({"optimizer": {"params": {"betas": [0.9, 1]}}})",
     {"optimizer.params.betas", "two numbers in [0, 1)", "[0.9, 1]"}},
    {R"({"optimizer": {"params": {"betas": [0.9]}}})",
     {"optimizer.params.betas", "two numbers"}},
    {R"({"optimizer": {"params": {"eps": 0}}})",
     {"optimizer.params.eps", "> 0", "0"}},
    {R"({"optimizer": {"type": "Lamb", "params": {"max_coeff": 0.001}}})",
     {"max_coeff", "min_coeff", "0.001"}},
    {R"({"thinwire": {"hierarchy": "tree"}})",
     {"thinwire.hierarchy must be one of auto, flat, by_host", "tree"}},
    {R"({"thinwire": {"ranks_per_host": -1}})",
     {"thinwire.ranks_per_host must be an integer in [0,", "-1"}},
    {R"({"thinwire": {"zero_bits_up": 2}})",
     {"thinwire.zero_bits_up) must be 0, 4 or 8", "thinwire.lean", "got 2"}},
    {R"({"thinwire": {"zero_bits_down": 16}})",
     {"thinwire.zero_bits_down) must be 0, 4 or 8", "got 16"}},
    {R"({"thinwire": {"zero_bits_down": true}})",
     {"thinwire.zero_bits_down must be an integer", "true"}},
    {R"({"thinwire": {"zero_after_skip": "drop"}})",
     {"thinwire.zero_after_skip", "auto, keep, clear", "drop"}},
    {R"({"thinwire": {"residual_dtype": "fp16"}})",
     {"thinwire.residual_dtype", "fp32, bf16", "fp16"}},
    {R"({"thinwire": {"fallback": true}})",
     {"thinwire.fallback", "off, warn, hold", "true"}},
    {R"({"thinwire": {"telemetry": {"every": 0}}})",
     {"thinwire.telemetry.every must be an integer >= 1, got 0"}},
    {R"({"thinwire": {"bucket_elements": 1e20}})",
     {"thinwire.bucket_elements must be an integer >= 0 and < 2^63", "1e+20"}},
    {R"({"thinwire": {"telemetry": {"residual_every": -1}}})",
     {"thinwire.telemetry.residual_every", ">= 0", "-1"}},
    {R"({"thinwire": {"telemetry": {"paths": "a"}}})", {"'path'?"}},
    {R"({"optimizer": {"type": "OneBitAdam"}, "thinwire": {"zero_bits_up": 4}})",
     {"thinwire.zero_bits_up is of Adam, AdamW, Lamb, not of OneBitAdam"}},
    {R"({"thinwire": {"lean": true}})",
     {"thinwire.lean is of OneBitAdam, not of AdamW"}},
    {R"({"optimizer": {"type": "OneBitAdam"},
         "thinwire": {"denominator_bits": 4}})",
     {"thinwire.denominator_bits must be left out", "thinwire.lean"}},
    {R"({"optimizer": {"type": "OneBitAdam"},
         "thinwire": {"lean": true, "denominator_bits": 2}})",
     {"denominator_bits must be", "got 2"}},
    {R"({"optimizer": {"type": "OneBitAdam"},
         "thinwire": {"variance_refresh": 100}})",
     {"thinwire.variance_refresh = 100 is rejected", "freeze_step",
      "only 0 is accepted"}},
    {R"({"optimizer": {"type": "OneBitAdam"},
         "thinwire": {"compressed_during_backward": true}})",
     {"thinwire.compressed_during_backward = true is rejected",
      "use `compressed_under_next_step`", "only false is accepted"}},
    {R"({"optimizer": {"type": "OneBitAdam"},
         "thinwire": {"lean": true, "semantics": "deepspeed"}})",
     {"semantics must be corrected with lean_onebit_adam", "deepspeed"}},
    {R"({"optimizer": {"type": "OneBitAdam"}, "thinwire": {"warmup_bits": 2}})",
     {"warmup_bits must be 0, 4 or 8, got 2"}},
    {R"({"optimizer": {"type": "OneBitLamb"},
         "thinwire": {"warmup_bits": 8, "semantics": "deepspeed"}})",
     {"warmup_bits must be 0 with deepspeed semantics", "got 8"}},
    {R"({"optimizer": {"type": "OneBitAdam"},
         "thinwire": {"warmup_bits": 4, "semantics": "deepspeed"}})",
     {"warmup_bits must be 0 with deepspeed semantics", "got 4"}},
    {R"({"thinwire": {"semantics": "exact"}})",
     {"thinwire.semantics", "corrected, deepspeed", "exact"}},
    {R"({"communication_data_type": "int8"})",
     {"communication_data_type", "fp32", "int8"}},
    {R"({"steps_per_print": 0})", {"steps_per_print", ">= 1"}},
    // Rejected with a reason; ConfigKeys.* has all keys that are.
    {R"({"optimizer": {"type": "OneBitAdam", "params": {"amsgrad": true}}})",
     {"optimizer.params.amsgrad", "rejected", "running maximum"}},
    {R"({"zero_optimization": {"stage": 1,
         "offload_optimizer": {"device": "nvme"}}})",
     {"offload_optimizer.device", "none, cpu", "nvme"}},
    {R"({"zero_optimization": {"stage": 1, "cpu_offload": true,
         "offload_optimizer": {"device": "cpu"}}})",
     {"zero_optimization.cpu_offload", "offload_optimizer"}},
    // Two keys for one thing.
    {R"({"optimizer": {"type": "OneBitAdam", "params": {"freeze_step": 8}},
         "thinwire": {"auto_freeze": true}})",
     {"optimizer.params.freeze_step", "auto_freeze"}},
    {R"({"fp16": {"initial_scale_power": 3},
         "thinwire": {"initial_loss_scale": 5}})",
     {"thinwire.initial_loss_scale", "initial_scale_power"}},
};

TEST(ConfigErrors, NameTheKeyItsRangeAndTheValue) {
  for (const Refusal& refusal : kRefusals) {
    SCOPED_TRACE(refusal.text);
    try {
      static_cast<void>(Config::from_json(refusal.text));
      ADD_FAILURE() << "was accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      for (const std::string& part : refusal.parts)
        EXPECT_NE(std::string(error.what()).find(part), std::string::npos)
            << "\"" << part << "\" is not in: " << error.what();
    }
  }
}

TEST(ConfigErrors, StayShortForLongInput) {
  const std::string word(5000, 'x');
  for (const std::string& text :
       {"{\"" + word + "\": 1}", "{\"train_batch_size\": \"" + word + "\"}",
        "{\"optimizer\": {\"type\": \"" + word + "\"}}", "{" + word + "}"}) {
    try {
      static_cast<void>(Config::from_json(text));
      ADD_FAILURE() << "was accepted";
    } catch (const Error& error) {
      EXPECT_LT(std::string(error.what()).size(), 500u);
    }
  }
  test::expect_invalid({"at most", "bytes"}, [] {
    static_cast<void>(Config::from_json(std::string(2 << 20, ' ')));
  });
}

// ---- fuzz/config_fuzz.cpp over its corpus and over mutations of it, the same
// every time; something wrong ends the process

std::vector<std::string> corpus() {
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(
           THINWIRE_SOURCE_DIR "/fuzz/config_corpus"))
    paths.push_back(entry.path());
  std::sort(paths.begin(), paths.end());
  std::vector<std::string> texts;
  for (const auto& path : paths) {
    std::ostringstream text;
    text << std::ifstream(path).rdbuf();
    texts.push_back(text.str());
  }
  return texts;
}

void run(const std::string& text) {
  LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(text.data()),
                         text.size());
}

TEST(ConfigFuzz, ReadsOrRefusesItsCorpus) {
  const auto texts = corpus();
  ASSERT_GE(texts.size(), 10u);
  for (const std::string& text : texts) run(text);
}

TEST(ConfigFuzz, ReadsOrRejectsWhatIsCloseToIt) {
  constexpr int kMutations = 20'000;
  const auto texts = corpus();
  test::Mutator mutate(12345);
  for (int i = 0; i < kMutations; ++i) {
    const auto at = static_cast<std::size_t>(i);
    run(mutate(texts[at % texts.size()], texts[(at / 7) % texts.size()]));
  }
}

}  // namespace
}  // namespace thinwire::config::errors_test
