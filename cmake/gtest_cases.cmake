# SPDX-License-Identifier: Apache-2.0
include(GoogleTest)

# headwise_discover_tests(TARGET [WHOLE suite…] [EXCEPT gtest-pattern…] [PROPERTIES name value…])
#
# Each case of a GoogleTest binary becomes a test of its own, but for those of EXCEPT. The suites of WHOLE stay together:
# they are many small cases, of which starting a process (and what the suite sets up) would be the longest part.
function(headwise_discover_tests target)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "WHOLE;EXCEPT;PROPERTIES")
  foreach(suite IN LISTS arg_WHOLE)
    add_test(NAME ${suite} COMMAND ${target} "--gtest_filter=${suite}.*")
    set_tests_properties(${suite} PROPERTIES TIMEOUT 300 ${arg_PROPERTIES})
    list(APPEND arg_EXCEPT "${suite}.*")
  endforeach()
  set(filter "*")
  if(arg_EXCEPT)
    list(JOIN arg_EXCEPT ":" filter)
    string(PREPEND filter "-")
  endif()
  gtest_discover_tests(${target} DISCOVERY_MODE PRE_TEST TEST_FILTER "${filter}" PROPERTIES ${arg_PROPERTIES})
endfunction()
