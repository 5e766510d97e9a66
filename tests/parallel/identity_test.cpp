#include "parallel/identity.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tandem {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

const std::vector<RankPlace> kPlaces = [] {
  std::vector<RankPlace> places(3);
  places[0].host = "spark1";
  places[1].host = "spark2";
  places[2].host = "spark3";
  return places;
}();

TEST(CompareIdentity, EqualFactsPass) {
  const std::vector<IdentityFact> facts{{"binary", "abc"}, {"config", "1"}};
  EXPECT_FALSE(compare_identity({facts, facts, facts}, kPlaces).has_value());
}

TEST(CompareIdentity, NamesFieldValuesAndRanksOfEveryDifference) {
  const auto error = compare_identity({{{"binary", "abc"}, {"config", "1"}, {"tokenizer", "t"}},
                                       {{"binary", "def"}, {"config", "1"}, {"tokenizer", "t"}},
                                       {{"binary", "abc"}, {"config", "2"}, {"tokenizer", "t"}}},
                                      kPlaces);
  ASSERT_TRUE(error.has_value());
  const auto text = format_error(*error);
  EXPECT_THAT(text, HasSubstr("binary is abc (rank 0 on spark1, rank 2 on spark3) but def "
                              "(rank 1 on spark2)"));
  EXPECT_THAT(text, HasSubstr("config is 1 (rank 0 on spark1, rank 1 on spark2) but 2 "
                              "(rank 2 on spark3)"));
  EXPECT_THAT(text, HasSubstr("bring binary, config to one state"));
  EXPECT_THAT(text, Not(HasSubstr("tokenizer")));
}

TEST(CompareIdentity, AFactThatARankLacksIsADifference) {
  const auto error =
      compare_identity({{{"binary", "abc"}}, {{"binary", "abc"}, {"drafter", "x"}}, {}}, kPlaces);
  ASSERT_TRUE(error.has_value());
  EXPECT_THAT(error->what, HasSubstr("(absent)"));
  EXPECT_THAT(error->what, HasSubstr("drafter"));
  EXPECT_THAT(error->what, HasSubstr("binary"));
}

}  // namespace
}  // namespace tandem
