// SPDX-License-Identifier: Apache-2.0
#include "thinwire/kernels/sign_compress.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "support/kernel_cases.h"
#include "support/same_bits.h"
#include "support/values.h"
#include "thinwire/core/error.h"
#include "thinwire/kernels/norm.h"

namespace thinwire::kernels::sign_compress_test {
namespace {

class SignKernels : public test::KernelTest {
 protected:
  template <class L>
  void compare_updates(bool rounds) {
    for (const auto& mask : test::masks(size))
      for (const float decay : {0.0f, 0.01f}) {
        const AdamCoefficients c{.exp_avg_scale = 1.7f,
                                 .decoupled_decay = decay,
                                 .minus_learning_rate = -0.01f};
        compare(
            sign_update, ref::sign_update,
            [&](auto run, auto words, auto p, auto d, auto low) {
              run({words.data(), 0.6f}, test::active(mask),
                  {.params = p.data(),
                   .denominator = d.data(),
                   .low_precision = rounds ? View(low) : View(),
                   .size = size},
                  c);
            },
            test::random_words(sign_words(size), 16),
            test::normal_and_special(size, 7), test::positive(size, 8),
            std::vector<L>(size));
      }
  }
};

TEST_P(SignKernels, SplitEqualsReference) {
  std::vector<float> scales = test::special_values();
  scales.push_back(0.8f);
  for (const auto& mask : test::masks(size))
    for (const float scale : scales)
      compare(
          sign_split, ref::sign_split,
          [&](auto run, auto error, auto words) {
            run(error.data(), scale, words.data(), test::active(mask), size);
          },
          test::normal_and_special(size, 5),
          test::random_words(sign_words(size), 14));
}

TEST_P(SignKernels, DecodeEqualsReference) {
  for (const auto& mask : test::masks(size))
    for (const float scale : test::special_values())
      compare(
          sign_decode, ref::sign_decode,
          [&](auto run, auto words, auto out) {
            run({words.data(), scale}, test::active(mask), out.data(), size);
          },
          test::random_words(sign_words(size), 15), test::normal(size, 6));
}

TEST_P(SignKernels, UpdateEqualsReference) {
  compare_updates<Half>(false);
  compare_updates<Half>(true);
  compare_updates<BFloat16>(true);
}

INSTANTIATE_TEST_SUITE_P(All, SignKernels, test::kernel_cases(),
                         test::case_name);

// ---- by hand; SignKernels.* and SignEncode.* show the same of all targets

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

class SignValues : public ::testing::Test {
 protected:
  /// A block whose residual is `error`, which becomes c.
  SignBlock block_of(std::vector<float>& error) {
    words_.assign(sign_words(error.size()), 0);
    return {
        .residual = error, .words = words_.data(), .num_active = error.size()};
  }

 private:
  std::vector<std::uint32_t> words_;
};

using Floats = std::vector<float>;

TEST_F(SignValues, ZeroMinusZeroAndNanArePlus) {
  Floats error = {0.0f, -0.0f, kNan, -kNan, -0x1p-149f, 0x1p-149f, -1, 1};
  std::uint32_t bits = 0;
  ref::sign_split(error.data(), 1.0f, &bits, nullptr, error.size());
  EXPECT_EQ(bits, 0b1010'1111u);
  EXPECT_EQ(error[0], -1);
  EXPECT_EQ(error[1], -1);
  EXPECT_TRUE(std::isnan(error[2]));
  EXPECT_TRUE(std::isnan(error[3]));
}

TEST_F(SignValues, SplitSubtractsTheSentValue) {
  Floats error = {3, -3, 0.5f, -0.5f};
  std::uint32_t bits = 0;
  ref::sign_split(error.data(), 2.0f, &bits, nullptr, error.size());
  EXPECT_EQ(bits, 0b0101u);
  EXPECT_EQ(error, (Floats{1, -1, -1.5f, 1.5f}));
}

TEST_F(SignValues, BitsPastTheEndAreZero) {
  for (const std::size_t size : {1u, 31u, 32u, 33u, 63u}) {
    Floats error(size, 1.0f);
    std::vector<std::uint32_t> words(sign_words(size), 0xdead'beefu);
    ref::sign_split(error.data(), 1.0f, words.data(), nullptr, size);
    for (std::size_t i = 0; i < words.size() * 32; ++i) {
      EXPECT_EQ(words[i / 32] >> (i % 32) & 1u, i < size ? 1u : 0u)
          << "bit " << i << " of " << size;
    }
  }
}

// The RMS of c is known to the last bit where it is a whole number.
TEST_F(SignValues, EncodeByHand) {
  const AdamCoefficients c{
      .beta1 = 0.5f, .one_minus_beta1 = 0.25f, .grad_scale = 2};
  const Floats grads = {2, 4, 8, -2};
  const Floats exp_avg = {2, -4, 6, 4};
  const std::uint32_t signs = 0b1101;
  SignInput input;
  Floats error = {2, -2, 2, -2};
  EXPECT_EQ(ref::sign_encode(input, block_of(error)), 2);
  EXPECT_EQ(error, (Floats{2, -2, 2, -2}));

  input.values = grads.data();
  error = {1, -7, -5, 5};
  EXPECT_EQ(ref::sign_encode(input, block_of(error)), 3);
  EXPECT_EQ(error, (Floats{3, -3, 3, 3}));

  // exp_avg / 2 + grads * 2 / 4 = {2, 0, 7, 1}
  input = {.grads = grads, .exp_avg = exp_avg.data(), .coefficients = &c};
  error = {3, -5, -2, 4};
  EXPECT_EQ(ref::sign_encode(input, block_of(error)), 5);
  EXPECT_EQ(error, (Floats{5, -5, 5, 5}));

  // {6, -6, 6, 6} / 2 + {1, 2, 4, -1} = {4, -1, 7, 2}
  input = {.grads = grads, .mean = {&signs, 6}, .coefficients = &c};
  error = {0, 5, -3, -6};
  EXPECT_EQ(ref::sign_encode(input, block_of(error)), 4);
  EXPECT_EQ(error, (Floats{4, 4, 4, -4}));
}

// c went out with a scale: what is added to is what that left of it.
TEST_F(SignValues, EncodeComputesTheErrorOfTheLastCall) {
  Floats kept = {3, -3, 1, -1};
  SignBlock block = block_of(kept);
  block.scale = 2;
  EXPECT_EQ(ref::sign_encode({}, block), 1);
  EXPECT_EQ(kept, (Floats{1, -1, -1, 1}));
  EXPECT_EQ(block.words[0], 0b1001u);
}

TEST_F(SignValues, AverageByHand) {
  const std::uint32_t first = 0b0011;
  const std::uint32_t second = 0b0101;
  const std::vector<Signs> received = {{&first, 2}, {&second, 8}};
  Floats error = {1, -3, 3, -1};  // + {10, -6, 6, -10} / 2
  EXPECT_EQ(ref::sign_encode_average(received, 0.5f, block_of(error)), 6);
  EXPECT_EQ(error, (Floats{6, -6, 6, -6}));
}

// 1 is lost in 2^24 + 1, but not in 2^24 - 2^24 + 1.
TEST_F(SignValues, RanksAreAddedInTheOrderGiven) {
  const std::uint32_t plus = 1;
  const std::uint32_t minus = 0;
  const std::vector<Signs> lost = {
      {&plus, 0x1p24f}, {&plus, 1}, {&minus, 0x1p24f}};
  const std::vector<Signs> kept = {
      {&plus, 0x1p24f}, {&minus, 0x1p24f}, {&plus, 1}};
  Floats error = {0};
  EXPECT_EQ(ref::sign_encode_average(lost, 1, block_of(error)), 0);
  EXPECT_EQ(ref::sign_encode_average(kept, 1, block_of(error)), 1);
}

TEST_F(SignValues, TheAverageOfNoRanksIsTheError) {
  Floats error(40, -0.5f);
  EXPECT_EQ(ref::sign_encode_average({}, 1, block_of(error)), 0.5f);
  EXPECT_EQ(error, Floats(40, -0.5f));
}

TEST_F(SignValues, MaskedElementsAffectNothing) {
  const std::size_t size = 67;
  const std::vector<std::uint32_t> active = {0xffff'ffffu, 0xffff'fffau, 1};
  const auto masked = [](std::size_t i) {
    return i == 32 || i == 34 || i > 64;
  };
  Floats x(size, 1.0f);
  for (std::size_t i = 0; i < size; ++i) {
    if (masked(i)) x[i] = kNan;
  }
  Floats error(size, 1.0f);
  SignInput input;
  input.values = x.data();
  SignBlock block = block_of(error);
  block.active = active.data();
  block.num_active = size - 4;
  EXPECT_EQ(ref::sign_encode(input, block), 2);
  std::vector<std::uint32_t> words(3);
  for (std::size_t i = 0; i < size; ++i) {
    EXPECT_EQ(error[i], masked(i) ? 0.0f : 2.0f) << i;
    error[i] = -error[i];
  }
  ref::sign_split(error.data(), 0.5f, words.data(), active.data(), size);
  Floats sent(size, 7.0f);
  ref::sign_decode({words.data(), 0.5f}, active.data(), sent.data(), size);
  Floats params(size, 1.0f);
  const Floats denominator(size, 2.0f);
  const AdamCoefficients c{.minus_learning_rate = -1};
  ref::sign_update({words.data(), 0.5f}, active.data(),
                   {params.data(), nullptr, denominator.data(), {}, size}, c);
  for (std::size_t i = 0; i < size; ++i) {
    EXPECT_EQ(words[i / 32] >> (i % 32) & 1u, masked(i) ? 1u : 0u) << i;
    EXPECT_EQ(error[i], masked(i) ? 0.0f : -1.5f) << i;
    EXPECT_EQ(sent[i], masked(i) ? 0.0f : -0.5f) << i;
    EXPECT_EQ(params[i], masked(i) ? 1.0f : 1.25f) << i;
  }
}

TEST_F(SignValues, UpdateByHand) {
  const std::uint32_t bits = 0b01;
  Floats params = {8, 8};
  const Floats denominator = {2, 4};
  std::vector<BFloat16> rounded(2);
  // u = +-3 * 4 / d + 8 / 4 = {8, -1}
  ref::sign_update({&bits, 3}, nullptr,
                   {params.data(), nullptr, denominator.data(), rounded, 2},
                   {.exp_avg_scale = 4,
                    .decoupled_decay = 0.25f,
                    .minus_learning_rate = -0.5f});
  EXPECT_EQ(params, (Floats{4, 8.5f}));
  EXPECT_EQ(rounded[0].bits, 0x4080);
  EXPECT_EQ(rounded[1].bits, 0x4108);
}

// The sum of a block longer than a chunk is the chunks' sums, added in order:
// it has no groups of chunks.
TEST_F(SignValues, LongBlocksAreSummedChunkByChunk) {
  const Floats x = test::normal(2 * kSumChunk + 45, 1);
  Floats error(x.size(), 0.0f);
  std::vector<double> squares(3);
  chunk_sums_of_squares(x, squares);
  EXPECT_EQ(ref::sign_encode({.values = x.data()}, block_of(error)),
            sign_scale(squares[0] + squares[1] + squares[2], x.size()));
}

TEST_F(SignValues, WrongInputsAreRefusedBeforeAnythingChanges) {
  const AdamCoefficients c;
  const Floats grads(3, 1.0f);
  const std::vector<double> doubles(3, 1.0);
  Floats error(3, 1.0f);
  for (const auto run : {sign_encode, ref::sign_encode}) {
    const auto refused = [&](const SignInput& input, std::size_t size) {
      SignBlock block = block_of(error);
      block.residual = block.residual.subview(0, size);
      EXPECT_THROW((void)run(input, block), Error);
    };
    refused({.grads = doubles, .exp_avg = grads.data(), .coefficients = &c}, 3);
    refused({.grads = grads, .exp_avg = grads.data()}, 3);
    refused({.grads = grads, .coefficients = &c}, 3);
    refused({.grads = grads, .exp_avg = grads.data(), .coefficients = &c}, 2);
  }
  const std::uint32_t bits = 0;
  for (const auto run : {sign_update, ref::sign_update})
    EXPECT_THROW(run({&bits, 1}, nullptr,
                     {error.data(), nullptr, grads.data(),
                      View(error.data(), 3, DType::kFloat32), 3},
                     c),
                 Error);
  EXPECT_EQ(error, Floats(3, 1.0f));
}

}  // namespace
}  // namespace thinwire::kernels::sign_compress_test
