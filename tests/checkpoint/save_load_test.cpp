// SPDX-License-Identifier: Apache-2.0
// Optimizers without an engine: layouts of awkward sizes, parameters in another
// order, new ones and renamed ones, and what is written.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <memory>
#include <utility>

#include "checkpoint/matching.h"
#include "checkpoint/rows.h"
#include "core/ranges.h"
#include "support/errors.h"
#include "support/folder.h"
#include "support/ranks.h"
#include "thinwire/checkpoint/checkpoint.h"
#include "thinwire/checkpoint/inspect.h"
#include "thinwire/core/buffer.h"
#include "thinwire/kernels/cast.h"
#include "thinwire/optim/adam.h"
#include "thinwire/optim/data_parallel.h"
#include "thinwire/optim/onebit_adam.h"

namespace thinwire::checkpoint::save_load_test {
namespace {

using test::expect_error;
using test::expect_invalid;
using test::Folder;

const SaveOptions kQuick{.durable = false};

std::vector<ParameterSpec> awkward_specs() {
  return {{"none", {0}, 0},     {"one", {1}, 1},      {"b1023", {1023}, 0},
          {"b1024", {1024}, 1}, {"b1025", {1025}, 0}, {"last", {4097}, 1},
          {"empty", {3, 0}, 1}};
}

// A gradient that depends on the parameter's name, not on its place.
void fill_gradient(const ParameterLayout& layout, std::int64_t step, int rank,
                   std::vector<float>& grads) {
  for (const Parameter& p : layout.parameters())
    for (std::size_t i = 0; i < p.size; ++i) {
      const auto mixed = static_cast<unsigned>(
          (i * 2654435761u) ^ (static_cast<unsigned>(step) * 40503u) ^
          (static_cast<unsigned>(rank) * 9176u) ^ p.name.size() * 77u);
      grads[p.offset + i] = static_cast<float>(mixed % 2001) / 1000.0f - 1.0f;
    }
}

enum class Kind { kAdam, kOnebitAdam };

struct Trained {
  Trained(comm::Communicator& c, std::vector<ParameterSpec> specs, Kind kind,
          std::size_t groups = 2)
      : comm(c),
        layout(ParameterLayout::of(std::move(specs), groups)),
        params(layout.size()),
        grads(layout.size()) {
    if (kind == Kind::kAdam)
      optimizer = std::make_unique<optim::DataParallel>(
          comm, std::make_unique<optim::Adam>(layout, optim::AdamOptions{}));
    else
      optimizer = std::make_unique<optim::OnebitAdam>(
          comm, layout, optim::OnebitAdamOptions{.freeze = {.step = 2}});
    training = std::make_unique<Training>(Training{.comm = comm,
                                                   .layout = layout,
                                                   .params = params,
                                                   .optimizer = *optimizer});
  }
  void steps(std::int64_t count) {
    for (; count > 0; --count) {
      fill_gradient(layout, ++training->step, comm.rank(), grads);
      optimizer->step(params, grads);
    }
  }
  SaveReport save_in(const Folder& folder) {
    return save(*training, folder.path(), {}, kQuick);
  }
  [[nodiscard]] std::vector<float> of(std::string_view name,
                                      const std::vector<float>& all) const {
    const Parameter& p = layout.parameter(name);
    const auto first = all.begin() + static_cast<std::ptrdiff_t>(p.offset);
    return {first, first + static_cast<std::ptrdiff_t>(p.size)};
  }
  [[nodiscard]] std::vector<float> state(const char* array) const {
    const StateDict state = copy_of(optimizer->state());
    const auto values = state.array(array).as<float>();
    return {values.begin(), values.end()};
  }

  comm::Communicator& comm;
  const ParameterLayout layout;
  std::vector<float> params, grads;
  std::unique_ptr<optim::Optimizer> optimizer;
  std::unique_ptr<Training> training;
};

TEST(SaveAndLoad, AwkwardSizesOnAnyNumbersOfRanks) {
  for (const Kind kind : {Kind::kAdam, Kind::kOnebitAdam})
    for (const int before : {1, 2, 3, 5})
      for (const int after : {1, 2, 4}) {
        const Folder folder;
        std::vector<float> params;
        std::vector<float> moments;
        comm::run_local_ranks(before, [&](comm::Communicator& comm) {
          Trained run(comm, awkward_specs(), kind);
          run.steps(4);
          run.save_in(folder);
          if (comm.rank() != 0) return;
          params = run.params;
          moments = run.state("exp_avg");
        });
        EXPECT_TRUE(verify(folder.in("step-0000000004")).good());
        comm::run_local_ranks(after, [&](comm::Communicator& comm) {
          Trained run(comm, awkward_specs(), kind);
          // Read once, in shares, or by every rank.
          const LoadReport report =
              load(*run.training, folder.path(), {.share_reads = before != 3});
          EXPECT_EQ(report.step, 4);
          EXPECT_EQ(report.world, before);
          EXPECT_EQ(run.params, params);
          EXPECT_EQ(run.state("exp_avg"), moments);
          run.steps(2);
          EXPECT_EQ(run.optimizer->progress().steps, 6);
        });
      }
}

// Saved by a run that used the option, or had its default.
TEST(SaveAndLoad, AnOptionThatDoesNotExistAnyMoreIsRefusedByName) {
  struct Case {
    const char* config;
    const char* named;  // nullptr: it loads
  };
  for (const auto& [config, named] :
       {Case{R"({"thinwire": {"variance_refresh": 16}})",
             "variance_refresh = 16"},
        Case{R"({"thinwire": {"exchanged": "gradient"}})",
             "exchanged = \"gradient\""},
        Case{R"({"thinwire": {"scale": "l1"}})", "scale = \"l1\""},
        Case{R"({"thinwire": {"calibrated_clipping": false}})",
             "calibrated_clipping = false"},
        Case{R"({"thinwire": {"variance_refresh": 0, "exchanged": "momentum",
                              "scale": "rms", "calibrated_clipping": true}})",
             nullptr},
        Case{R"({"thinwire": {"compressed_during_backward": true}})", nullptr},
        Case{"not a configuration", nullptr}}) {
    const Folder folder;
    comm::run_local_ranks(2, [&, &text = config, &name = named](auto& comm) {
      Trained run(comm, awkward_specs(), Kind::kOnebitAdam);
      run.training->config = text;
      run.steps(4);
      run.save_in(folder);
      Trained next(comm, awkward_specs(), Kind::kOnebitAdam);
      if (name == nullptr) {
        EXPECT_EQ(load(*next.training, folder.path()).step, 4);
        return;
      }
      expect_error(ErrorCode::kCorruptCheckpoint,
                   {name, "what = kWeights", "weights_only=True"},
                   [&] { load(*next.training, folder.path()); });
      EXPECT_EQ(next.optimizer->progress().steps, 0);
      static_cast<void>(
          load(*next.training, folder.path(), {.what = What::kWeights}));
      EXPECT_EQ(next.params, run.params);
    });
  }
}

TEST(SaveAndLoad, ParametersMayLieInAnotherOrder) {
  for (const Kind kind : {Kind::kAdam, Kind::kOnebitAdam}) {
    const Folder folder;
    comm::run_local_ranks(2, [&](comm::Communicator& comm) {
      Trained run(comm, awkward_specs(), kind);
      run.steps(4);
      run.save_in(folder);
      std::vector<ParameterSpec> specs = awkward_specs();
      std::reverse(specs.begin(), specs.end());
      Trained other(comm, specs, kind);
      static_cast<void>(load(*other.training, folder.path()));
      for (const Parameter& p : run.layout.parameters()) {
        EXPECT_EQ(other.of(p.name, other.params), run.of(p.name, run.params));
        EXPECT_EQ(other.of(p.name, other.state("exp_avg")),
                  run.of(p.name, run.state("exp_avg")));
      }
      other.steps(2);
    });
  }
}

TEST(SaveAndLoad, NewAndRenamedParameters) {
  const Folder folder;
  comm::run_local_ranks(2, [&](comm::Communicator& comm) {
    Trained run(comm, awkward_specs(), Kind::kAdam);
    run.steps(3);
    run.save_in(folder);
    std::vector<ParameterSpec> specs = awkward_specs();
    specs[5].name = "other";
    specs.push_back({"new", {50}, 0});
    Trained next(comm, specs, Kind::kAdam);
    std::ranges::fill(next.params, 7.0f);
    const std::vector<float> before = next.params;
    expect_error(ErrorCode::kCorruptCheckpoint,
                 {"missing other", "missing new", "unexpected last"}, [&] {
                   static_cast<void>(load(*next.training, folder.path()));
                 });
    EXPECT_EQ(next.params, before);
    const LoadReport report =
        load(*next.training, folder.path(),
             {.rename = {{"last", "other"}}, .allow_missing = {"new"}});
    EXPECT_EQ(next.of("other", next.params), run.of("last", run.params));
    EXPECT_EQ(next.of("new", next.params), std::vector<float>(50, 7.0f));
    EXPECT_EQ(next.of("new", next.state("exp_avg")), std::vector<float>(50));
    const LoadReport lenient =
        load(*next.training, folder.path(), {.strict = false});
    EXPECT_NE(lenient.notes[0].find("left out: missing 'other', missing 'new', "
                                    "unexpected 'last'"),
              std::string::npos)
        << lenient.notes[0];
    Trained strange(comm, {{"x", {5}, 0}}, Kind::kAdam);
    expect_error(
        ErrorCode::kCorruptCheckpoint, {"has none of the model's 1"}, [&] {
          static_cast<void>(
              load(*strange.training, folder.path(), {.strict = false}));
        });
    bool noted = false;
    for (const std::string& note : report.notes)
      noted = noted || note.find("'new'") != std::string::npos;
    EXPECT_TRUE(noted);
    next.steps(2);
  });
}

TEST(SaveAndLoad, FloatsBesideTheParametersAreConverted) {
  const std::vector<float> values = {1.0f + 0x1p-9f, -3.5f, 0.0f};
  const auto types = {DType::kFloat32, DType::kFloat16, DType::kBFloat16};
  const auto with = [](Trained& run, Buffer& mean, Buffer& count) {
    run.training->others = {{"mean", {3}, mean.view()},
                            {"count", {}, count.view()}};
  };
  comm::run_local_ranks(1, [&](comm::Communicator& comm) {
    for (const DType saved : types)
      for (const DType loaded : types) {
        const Folder folder;
        Buffer mean(3, saved), count(1, DType::kInt64);
        kernels::convert(values, mean.view());
        Trained run(comm, awkward_specs(), Kind::kAdam);
        with(run, mean, count);
        run.save_in(folder);
        Buffer next_mean(3, loaded), want(3, loaded);
        Trained next(comm, awkward_specs(), Kind::kAdam);
        with(next, next_mean, count);
        static_cast<void>(load(*next.training, folder.path()));
        kernels::convert(std::as_const(mean).view(), want.view());
        EXPECT_EQ(std::memcmp(next_mean.data(), want.data(), want.bytes()), 0);

        Buffer real(1, loaded);
        with(next, next_mean, real);
        expect_error(
            ErrorCode::kCorruptCheckpoint,
            {"'count' has type int64 and shape [] in the checkpoint, "
             "and type ",
             std::string(to_string(loaded)) + " and shape [] in the "},
            [&] { static_cast<void>(load(*next.training, folder.path())); });
      }
  });
}

// After the freeze there is no variance for them: they are late until their
// first gradient.
TEST(SaveAndLoad, NewParametersAfterTheFreeze) {
  const Folder folder;
  comm::run_local_ranks(2, [&](comm::Communicator& comm) {
    Trained run(comm, awkward_specs(), Kind::kOnebitAdam);
    run.steps(4);
    run.save_in(folder);
    std::vector<ParameterSpec> specs = awkward_specs();
    specs.insert(specs.begin() + 3, {"new", {1500}, 0});
    Trained next(comm, specs, Kind::kOnebitAdam);
    static_cast<void>(
        load(*next.training, folder.path(), {.allow_missing = {"n*"}}));
    const std::vector<float> before = next.of("new", next.params);
    fill_gradient(next.layout, 5, comm.rank(), next.grads);
    const Parameter& p = next.layout.parameter("new");
    std::fill_n(&next.grads[p.offset], p.size, 0.0f);
    const optim::StepReport silent =
        next.optimizer->step(next.params, next.grads);
    EXPECT_EQ(silent.masked, p.size);
    EXPECT_EQ(next.of("new", next.params), before);

    fill_gradient(next.layout, 6, comm.rank(), next.grads);
    const optim::StepReport first =
        next.optimizer->step(next.params, next.grads);
    EXPECT_GT(first.revived, p.size - 3);  // some gradients are 0
    for (const float value : next.params) EXPECT_TRUE(std::isfinite(value));
    EXPECT_NE(next.of("new", next.params), before);
  });
}

// Parameters, moments and what little there is beside them; once, whatever the
// number of ranks.
TEST(SaveAndLoad, EveryByteIsWrittenOnce) {
  std::vector<std::uint64_t> bytes;
  for (const int world : {1, 2, 4}) {
    const Folder folder;
    comm::run_local_ranks(world, [&](comm::Communicator& comm) {
      Trained run(comm, {{"w", {100000}, 0}}, Kind::kAdam, 1);
      run.steps(1);
      const SaveReport report = run.save_in(folder);
      if (comm.rank() == 0) bytes.push_back(report.bytes);
    });
    constexpr std::uint64_t kValues = 3 * 100000 * sizeof(float);
    const auto files = static_cast<std::uint64_t>(world) + 1;
    EXPECT_GE(bytes.back(), kValues);
    EXPECT_LE(bytes.back(), kValues + files * 3 * 4096);
  }
}

TEST(SaveAndLoad, SaverKeepsItsRunAndItsLock) {
  const Folder folder;
  comm::run_local_ranks(2, [&](comm::Communicator& comm) {
    Trained run(comm, awkward_specs(), Kind::kAdam);
    {
      Saver saver(comm);
      for (int i = 0; i < 4; ++i) {
        run.steps(1);
        static_cast<void>(saver.save(*run.training, folder.path(), {}, kQuick));
        saver.retain(folder.path(), {.keep_last = 2, .keep_every = 0});
      }
      Saver second(comm);
      expect_error(ErrorCode::kFailedPrecondition,
                   {" pid ", "writes checkpoints"}, [&] {
                     static_cast<void>(
                         second.save(*run.training, folder.path(), {}, kQuick));
                   });
    }
    const std::vector<Description> all = inspect(folder.path());
    ASSERT_EQ(all.size(), 2u);
    EXPECT_EQ(all[0].step, 4);
    EXPECT_EQ(all[1].step, 3);
    EXPECT_EQ(all[0].run, all[1].run);
  });
}

// ---- which parameter is which, and which elements are where

std::vector<SavedParameter> saved() {
  return {{"wte.weight", {50257, 768}, 0, {}},
          {"h.0.weight", {768, 3072}, 0, {}},
          {"h.0.bias", {3072}, 1, {}},
          {"head", {0}, 0, {}}};
}

ParameterLayout model(std::vector<ParameterSpec> specs) {
  return ParameterLayout::of(std::move(specs), 2);
}

TEST(Matching, GoesByNameWhateverTheOrder) {
  const Matching found = match(saved(),
                               model({{"head", {0}, 0},
                                      {"h.0.bias", {3072}, 1},
                                      {"wte.weight", {50257, 768}, 0},
                                      {"h.0.weight", {768, 3072}, 0}}),
                               {}, true);
  const std::vector<std::optional<std::size_t>> want{3, 2, 0, 1};
  EXPECT_EQ(found.saved, want);
  EXPECT_FALSE(found.has_new());
}

TEST(Matching, TellsAllDifferences) {
  const ParameterLayout layout = model({{"wte.weight", {50304, 768}, 0},
                                        {"h.0.weights", {768, 3072}, 0},
                                        {"h.0.bias", {3072}, 0},
                                        {"head", {0}, 0}});
  expect_error(
      ErrorCode::kCorruptCheckpoint,
      {"shape wte.weight: checkpoint [50257, 768], model [50304, 768]\n",
       "missing h.0.weights (nearest: h.0.weight)\n",
       "group h.0.bias: checkpoint 1, model 0\n",
       "unexpected h.0.weight (nearest: h.0.weights)"},
      [&] { static_cast<void>(match(saved(), layout, {}, true)); });
}

TEST(Matching, GroupsAreTheOptimizersBusiness) {
  const ParameterLayout layout = model({{"wte.weight", {50257, 768}, 1},
                                        {"h.0.weight", {768, 3072}, 0},
                                        {"h.0.bias", {3072}, 0},
                                        {"head", {0}, 0}});
  EXPECT_EQ(match(saved(), layout, {}, false).saved.size(), 4u);
}

TEST(Matching, OptionsLiftDifferences) {
  const ParameterLayout layout = model({{"embedding", {50257, 768}, 0},
                                        {"h.0.weight", {768, 3072}, 0},
                                        {"new.a", {5}, 0},
                                        {"new.b", {5}, 1}});
  const LoadOptions options{.rename = {{"wte.weight", "embedding"}},
                            .allow_missing = {"new.*"},
                            .ignore = {"head", "*.bias"}};
  const Matching found = match(saved(), layout, options, true);
  const std::vector<std::optional<std::size_t>> want{0, 1, std::nullopt,
                                                     std::nullopt};
  EXPECT_EQ(found.saved, want);
  EXPECT_TRUE(found.has_new());
}

TEST(Matching, OptionsThatNameNothingAreErrors) {
  const ParameterLayout layout = model({{"wte.weight", {50257, 768}, 0},
                                        {"h.0.weight", {768, 3072}, 0},
                                        {"h.0.bias", {3072}, 1},
                                        {"head", {0}, 0}});
  const auto refused = [&](const LoadOptions& options, const char* option) {
    expect_invalid({option}, [&] {
      Manifest manifest;
      manifest.parameters = saved();
      const LoadOptions all = with_renames(manifest, layout, {}, options);
      static_cast<void>(match(saved(), layout, all, true));
    });
  };
  refused({.rename = {{"nobody", "x"}}}, "LoadOptions.rename");
  refused({.rename = {{"head", "h.0.bias"}}}, "LoadOptions.rename");
  refused({.allow_missing = {"x*"}}, "LoadOptions.allow_missing");
  refused({.ignore = {"x"}}, "LoadOptions.ignore");
}

TEST(Matching, PrefixesOfWrappersDoNotCount) {
  const std::vector<std::vector<std::string>> prefixes{
      {"", "", ""},
      {"module.", "module.", "module."},
      {"module._orig_mod.", "_orig_mod.", "module.module."}};
  for (const auto& there : prefixes)
    for (const auto& here : prefixes) {
      Manifest manifest;
      manifest.parameters = {{there[0] + "a", {2}},
                             {there[1] + "h._orig_mod.b", {3}}};
      manifest.others = {{there[2] + "mask", {4}}};
      const ParameterLayout layout =
          model({{here[0] + "a", {2}, 0}, {here[1] + "h.b", {3}, 0}});
      std::vector<float> values(4);
      const std::vector<OtherTensor> others{
          {here[2] + "mask", {4}, View(values)}};
      const LoadOptions options = with_renames(manifest, layout, others, {});
      EXPECT_FALSE(match(manifest.parameters, layout, options, true).has_new());
      std::vector<std::string> notes;
      EXPECT_EQ(match_others(others, manifest, options, notes)[0],
                &manifest.others[0]);
    }
}

TEST(Matching, NamesThatOnlyAPrefixTellsApartStayApart) {
  Manifest manifest;
  manifest.parameters = {{"_orig_mod.a", {2}}};
  const ParameterLayout layout = model({{"a", {2}, 0}, {"module.a", {2}, 0}});
  EXPECT_TRUE(with_renames(manifest, layout, {}, {}).rename.empty());
  manifest.parameters = {{"a", {2}}, {"module.a", {2}}};
  EXPECT_TRUE(with_renames(manifest, layout, {}, {}).rename.empty());
  EXPECT_EQ(without_wrappers("my_module.module.a"), "my_module.module.a");
}

TEST(Matching, StarsStandForAnything) {
  EXPECT_TRUE(matches("*", ""));
  EXPECT_TRUE(matches("a*c", "abc"));
  EXPECT_TRUE(matches("a*c", "ac"));
  EXPECT_TRUE(matches("*.b*.c", "a.b.b1.c"));
  EXPECT_FALSE(matches("a*c", "abcd"));
  EXPECT_FALSE(matches("ab", "abc"));
  EXPECT_FALSE(matches("a*b*c", "acb"));
  EXPECT_TRUE(matches("w[0]", "w[0]"));
}

const std::vector<Range> kRanges{{10, 3}, {0, 0}, {2, 4}};

TEST(Rows, EndWhereAParameterDoes) {
  const auto layout = ParameterLayout::of(
      {{"a", {3}}, {"none", {0}}, {"b", {2, 2}}, {"c", {6}}});
  const std::vector<Row> want{{3, {3, 3}}, {0, {2, 1}}, {2, {0, 3}}};
  EXPECT_EQ(rows_of(layout, kRanges), want);
  EXPECT_TRUE(rows_of(layout, std::vector<Range>{}).empty());
}

TEST(Rows, PartsOfRangesKeepTheirOrder) {
  EXPECT_EQ(part_of_ranges(kRanges, {0, 7}),
            (std::vector<Range>{{10, 3}, {2, 4}}));
  EXPECT_EQ(part_of_ranges(kRanges, {2, 3}),
            (std::vector<Range>{{12, 1}, {2, 2}}));
  EXPECT_TRUE(part_of_ranges(kRanges, {7, 0}).empty());
  EXPECT_EQ(total_size(kRanges), 7u);
}

TEST(Rows, SharesCoverEverythingOnce) {
  for (const std::size_t size : {0u, 1u, 7u, 31u, 32u, 33u, 4097u})
    for (const int parts : {1, 2, 3, 8}) {
      std::size_t next = 0;
      for (int part = 0; part < parts; ++part) {
        const Range share = share_of(size, part, parts);
        EXPECT_EQ(share.offset, next);
        EXPECT_LE(share.size, size / static_cast<std::size_t>(parts) + 1);
        next = share.end();
      }
      EXPECT_EQ(next, size);
    }
}

}  // namespace
}  // namespace thinwire::checkpoint::save_load_test
