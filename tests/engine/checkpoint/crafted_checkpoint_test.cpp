// SPDX-License-Identifier: Apache-2.0
// Checkpoints whose hashes fit and whose contents no run can continue with: a
// load names what is wrong, and changes nothing.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "checkpoint/format/manifest.h"
#include "checkpoint/format/safetensors.h"
#include "checkpoint/tiny_checkpoint.h"
#include "core/visit_floats.h"
#include "engine/by_hand.h"
#include "optim/states.h"
#include "support/errors.h"
#include "support/folder.h"
#include "support/kept_log.h"
#include "support/same_bits.h"
#include "thinwire/comm/local.h"

namespace thinwire::engine::test::crafted_checkpoint_test {
namespace {

using checkpoint::Manifest;
using checkpoint::SavedFile;
using checkpoint::test::read_file;
using checkpoint::test::write_file;

constexpr auto kCorrupt = ErrorCode::kCorruptCheckpoint;
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// A checkpoint that can be altered, and whose hashes then fit again.
class Crafted {
 public:
  explicit Crafted(std::string path)
      : path_(std::move(path)),
        text_(read_file(path_ + "/manifest.json")),
        manifest(checkpoint::parse_manifest(text_, path_)) {
    for (const SavedFile& file : manifest.files)
      files_.push_back(read_file(path_ + '/' + file.name));
  }

  // Every value of an array, or of a weight; false if there is none.
  bool fill(const std::string& name, double value) {
    bool found = false;
    for (std::size_t f = 0; f < files_.size(); ++f) {
      std::string bytes = files_[f];
      const std::string& file = manifest.files[f].name;
      const auto header_size =
          checkpoint::header_bytes(bytes.substr(0, 8), bytes.size(), file);
      const auto header = checkpoint::parse_header(bytes.substr(8, header_size),
                                                   bytes.size(), file);
      const auto* const tensor = header.find(name);
      if (tensor == nullptr || tensor->bytes == 0) continue;
      found = true;
      const DType dtype = tensor->type.dtype;
      const View values(bytes.data() + tensor->begin,
                        tensor->bytes / size_of(dtype), dtype);
      if (dtype == DType::kFloat64)
        for (double& each : values.as<double>()) each = value;
      else
        visit_floats(values, [&](auto* each) {
          for (std::size_t i = 0; i < values.size(); ++i)
            store_rounded(static_cast<float>(value), each + i);
        });
      put(f, bytes);
    }
    write();
    return found;
  }

  // With the manifest as it is now.
  void write() const {
    write_file(path_ + "/manifest.json", checkpoint::write_manifest(manifest));
  }

  void restore() {
    manifest = checkpoint::parse_manifest(text_, path_);
    for (std::size_t f = 0; f < files_.size(); ++f)
      write_file(path_ + '/' + manifest.files[f].name, files_[f]);
    write_file(path_ + "/manifest.json", text_);
  }

 private:
  void put(std::size_t f, const std::string& bytes) {
    SavedFile& file = manifest.files[f];
    file.chunk_hashes =
        checkpoint::test::saved_file(file.name, bytes).chunk_hashes;
    write_file(path_ + '/' + file.name, bytes);
  }

  std::string path_;
  std::string text_;
  std::vector<std::string> files_;

 public:
  Manifest manifest;
};

ParameterLayout small_layout() {
  return ParameterLayout::of({{"odd", {33, 5}, 1}, {"block", {1025}, 0}});
}

struct Case {
  std::string name;
  Config config;
  std::int64_t steps = 5;
};

std::vector<Case> cases() {
  std::vector<Case> all;
  const auto add = [&](std::string name, const config::OptimizerConfig& of,
                       DType dtype = DType::kFloat32, std::int64_t steps = 5) {
    Config config{.optimizer = of};
    config.precision.dtype = dtype;
    config.precision.loss_scale = {.initial_scale = 1024};
    all.push_back({std::move(name), config, steps});
  };
  for (const auto& [name, options] : optimizer_cases()) {
    add(name, options);
    add(name + "_fp16", options, DType::kFloat16);
  }
  add("onebit_adam_warmup", optimizer_case("onebit_adam"), DType::kFloat32, 2);
  add("zero_one_adam_bf16", optimizer_case("zero_one_adam"), DType::kBFloat16,
      4);
  const lean::LeanOnebitAdamOptions lean{.learning_rate = 0.01,
                                         .freeze = {.step = 3}};
  add("lean", lean);
  add("lean_warmup", lean, DType::kBFloat16, 2);
  for (const int bits : {0, 4}) {
    add(fmt::format("zero_{}", bits), optimizer_case("adam"), DType::kBFloat16);
    all.back().config.zero.stage = 2;
    all.back().config.zero.wire = {.bits_up = bits, .bits_down = bits};
  }
  return all;
}

// Ranks with a checkpoint of their own making, and others that are to load it.
void on_two_ranks(
    const Case& tested,
    const std::function<
        void(const std::string& path,
             const std::function<void(std::string_view)>& refused)>& body) {
  SCOPED_TRACE(tested.name);
  const Folder folder;
  const std::string path = save_run(2, tested.config, folder.path(),
                                    tested.steps, {.layout = small_layout()});
  const auto refused = [&](std::string_view part) {
    SCOPED_TRACE(part);
    comm::run_local_ranks(2, [&](comm::Communicator& comm) {
      Sharded run(comm, tested.config, {.layout = small_layout()});
      run.step({70});
      const std::vector<float> params = floats(run.params.view());
      const StateDict before = run.engine.state_dict();
      expect_error(kCorrupt, {part}, [&] { run.engine.load(path); });
      EXPECT_EQ(floats(run.params.view()), params);
      EXPECT_TRUE(thinwire::test::same_state(run.engine.state_dict(), before));
    });
  };
  body(path, refused);
}

bool is_float(DType dtype) {
  return dtype == DType::kFloat32 || dtype == DType::kFloat64 ||
         dtype == DType::kFloat16 || dtype == DType::kBFloat16;
}

// Whatever arrays an optimizer has, so that a new one is not forgotten.
TEST(CraftedCheckpoint, ValuesThatAreNotFiniteAreRefusedByName) {
  for (const Case& tested : cases())
    on_two_ranks(tested, [](const std::string& path, const auto& refused) {
      Crafted crafted(path);
      struct Array {
        std::string name;
        DType dtype;
        bool is_masters = false;  // under the optimizer's own name for them
      };
      std::vector<Array> arrays;
      for (const auto& array : crafted.manifest.arrays)
        arrays.push_back({array.name, array.dtype, array.is_parameters});
      arrays.push_back({"block", crafted.manifest.parameters[0].type.dtype});
      std::size_t tried = 0;
      for (const auto& [name, dtype, is_masters] : arrays)
        for (const double value : {double{kNaN}, double{kInfinity}, -3e38})
          if (is_float(dtype) && crafted.fill(name, value)) {
            refused(is_masters ? std::string("must hold finite values")
                               : fmt::format("'{}' must hold", name));
            crafted.restore();
            ++tried;
          } else {
            crafted.restore();
          }
      EXPECT_GE(tried, 9u);  // weights, and two moments or more
    });
}

TEST(CraftedCheckpoint, SignsThatNoRunHasAreRefusedByName) {
  struct Wrong {
    const char* array;
    double value;
  };
  constexpr Wrong kWrong[] = {
      {"exp_avg_sq", -1},         {"exp_avg_sq_fresh", -1},
      {"denominator", 0},         {"denominator", -1},
      {"denominator_floors", -1}, {"denominator_medians", -1},
      {"learning_rates", -1},     {"scaling_coeff", -1},
      {"lamb_coeffs", -1},        {"denominator_steps", -1}};
  std::set<std::string> tried;
  for (const Case& tested : cases())
    on_two_ranks(tested, [&](const std::string& path, const auto& refused) {
      Crafted crafted(path);
      for (const auto& [array, value] : kWrong) {
        if (crafted.fill(array, value)) {
          refused(fmt::format("'{}'", array));
          tried.insert(array);
        }
        crafted.restore();
      }
    });
  EXPECT_EQ(tried.size(), 9u);
}

// Whatever integers an optimizer has, so that a new count is not forgotten.
TEST(CraftedCheckpoint, CountsThatCouldWrapAroundAreRefusedByName) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  const std::set<std::string> no_counts = {
      // flags
      "accumulated", "clip_ratio_measured", "frozen", "momenta_differ",
      "verification_is_due",
      // settings of the script
      "bits_down", "bits_up", "freeze_step", "local_step_clipper",
      "local_step_scaler", "var_freeze_step", "var_update_scaler",
      // clamped
      "loss_scale_overflows_left"};
  const std::set<std::string> named = {"step",
                                       "skipped_steps",
                                       "frozen_at",
                                       "var_updates",
                                       "var_interval",
                                       "var_counter",
                                       "local_step_interval",
                                       "local_step_counter",
                                       "local_steps"};
  std::set<std::string> tried;
  for (const Case& tested : cases())
    on_two_ranks(tested, [&](const std::string& path, const auto& refused) {
      Crafted crafted(path);
      const auto altered = [&](const std::string& part) {
        crafted.write();
        refused(part);
        crafted.restore();
      };
      const auto scalars = crafted.manifest.scalars.scalars();
      for (const auto& [name, scalar] : scalars) {
        const bool is_ratio = name == "clip_ratio" || name == "clip_reference";
        if (named.contains(name) || is_ratio) tried.insert(name);
        if (is_ratio)
          for (const double value : {double{kNaN}, double{kInfinity}, -1.0}) {
            crafted.manifest.scalars.put_real(name, value);
            altered(fmt::format("'{}' must hold", name));
          }
        if (!std::holds_alternative<std::int64_t>(scalar) ||
            no_counts.contains(name))
          continue;
        const bool is_named = named.contains(name);
        for (const std::int64_t value :
             {std::int64_t{-5}, is_named ? kMost : std::int64_t{1} << 60}) {
          crafted.manifest.scalars.put_integer(name, value);
          altered(is_named ? fmt::format("'{}' must be in 0 .. ", name) : "");
        }
      }
    });
  EXPECT_EQ(tried.size(), 10u);  // all except clip_reference
}

// The engine checks its own values before the optimizer changes.
TEST(CraftedCheckpoint, ValuesOfTheEngineAreCheckedBeforeAnythingChanges) {
  const Case tested{"adam", {.optimizer = optimizer_case("adam")}};
  on_two_ranks(tested, [](const std::string& path, const auto& refused) {
    Crafted crafted(path);
    const auto altered = [&](std::string_view part, const auto& change) {
      change(crafted.manifest);
      crafted.write();
      refused(part);
      crafted.restore();
    };
    altered("'engine_steps' must be 5",
            [](Manifest& m) { m.caller.put_integer("engine_steps", -5); });
    altered("'engine_steps' must be 6", [](Manifest& m) { m.step = 6; });
    altered("'learning_rate/0' must hold",
            [](Manifest& m) { m.caller.put_real("learning_rate/0", kNaN); });
    altered("the configuration cannot be read",
            [](Manifest& m) { m.config = std::string(100'000, '['); });
    for (std::int64_t Manifest::*const count :
         {&Manifest::save_index, &Manifest::step, &Manifest::steps_behind})
      altered("is not a whole number from 0 to 9007199254740992",
              [&](Manifest& m) {
                m.*count = std::numeric_limits<std::int64_t>::max();
              });
  });
}

// Refused by the program that loads: nothing has changed either.
TEST(CraftedCheckpoint, AProgramMayRefuseOneOnAnyRank) {
  const Folder folder;
  comm::run_local_ranks(2, [&](comm::Communicator& comm) {
    Sharded run(comm, {.optimizer = optimizer_case("adam")},
                {.layout = small_layout()});
    run.step({1});
    checkpoint::Extra extra;
    extra.common.put_integer("epoch", 3);
    run.engine.save(folder.path(), extra, {.durable = false});
    run.step({2});
    const StateDict before = run.engine.state_dict();
    checkpoint::LoadOptions options;
    options.accept = [&](const checkpoint::LoadReport& found) {
      EXPECT_EQ(found.extra.common.integer("epoch"), 3);
      EXPECT_EQ(found.step, 1);
      if (comm.rank() == 1) throw Error(kCorrupt, "not this one");
    };
    expect_error(kCorrupt, {"rank 1: not this one"},
                 [&] { run.engine.load(folder.path(), options); });
    EXPECT_TRUE(thinwire::test::same_state(run.engine.state_dict(), before));
  });
}

// ---- parameters that have become NaN

TEST(CraftedCheckpoint, AfterParametersHaveBecomeNaNTheLastGoodOneStays) {
  const Folder folder;
  const KeptLog warnings(LogLevel::kWarning);
  comm::run_local_ranks(2, [&](comm::Communicator& comm) {
    Sharded run(comm, {.optimizer = optimizer_case("onebit_adam")},
                {.layout = small_layout()});
    const auto save = [&](std::int64_t t) {
      run.step({t});
      if (t > 2)
        for (float& value : run.params.as<float>().last(7)) value = kNaN;
      run.engine.save(folder.path(), {}, {.durable = false});
      run.engine.saver().retain(folder.path(), {.keep_last = 2});
    };
    for (std::int64_t t = 1; t <= 6; ++t) save(t);
    const auto newest = folder.in("step-0000000006");
    expect_error(kCorrupt, {"'block' must hold finite values", "got nan"},
                 [&] { run.engine.load(newest); });
    const auto loaded = run.engine.load(folder.path(), {.fall_back = true});
    EXPECT_EQ(loaded.step, 2);
    EXPECT_FALSE(std::isnan(run.params.as<float>().back()));
  });
  EXPECT_GT(warnings.count("step 3: rank 1 has parameters that are not finite"),
            0u);
  EXPECT_EQ(warnings.count("step 2:"), 0u);
}

}  // namespace
}  // namespace thinwire::engine::test::crafted_checkpoint_test
