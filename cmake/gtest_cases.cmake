# SPDX-License-Identifier: Apache-2.0
include(GoogleTest)

# headwise_discover_tests(TARGET [FILTER gtest-pattern] [WHOLE suite…] [PROPERTIES name value…])
#
# Each case of a GoogleTest binary becomes a test of its own. The suites of WHOLE stay together: they are
# many small cases, of which starting a process (and what the suite sets up) would be the longest part.
function(headwise_discover_tests target)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "FILTER" "WHOLE;PROPERTIES")
  set(filter "${arg_FILTER}")
  foreach(suite IN LISTS arg_WHOLE)
    if(NOT filter MATCHES "-")
      string(APPEND filter "*-${suite}.*")
    else()
      string(APPEND filter ":${suite}.*")
    endif()
    add_test(NAME ${suite} COMMAND ${target} "--gtest_filter=${suite}.*")
    set_tests_properties(${suite} PROPERTIES TIMEOUT 300 ${arg_PROPERTIES})
  endforeach()
  if(NOT filter)
    set(filter "*")
  endif()
  gtest_discover_tests(${target} DISCOVERY_MODE PRE_TEST TEST_FILTER "${filter}" PROPERTIES ${arg_PROPERTIES})
endfunction()
