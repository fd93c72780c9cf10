package dev.phalanx.spark.internal

import dev.phalanx.spark.BarrierRunner
import dev.phalanx.spark.support.PhalanxSuite

class SparkFitSuite extends PhalanxSuite {

  test("the jar fits the Spark that it is tested on") {
    assert(SparkFit.problem() == null && BarrierRunner.problem() == null)
  }

  test("what the jar can't run on is named in a sentence") {
    def said(java: String, scala: String, spark: String) = SparkFit.problem(java, scala, spark, "2.13")
    assert(said("17", "2.13.8", "3.5.0") == null && said("21", "2.13.18", "5.0.0-preview1") == null)
    assert(said("11", "2.13.8", "3.5.9").endsWith("needs Java 17 or later, and this is Java 11"), "JAR-3")
    assert(said("1.8", "2.13.8", "3.5.9").endsWith("needs Java 17 or later, and this is Java 1.8"))
    assert(said("17", "2.13.5", "3.4.4").endsWith("needs Spark 3.5 or later, and this is Spark 3.4.4"))
    assert(said("17", "2.12.18", "3.5.9").contains("built for Scala 2.13, and this Spark has Scala 2.12.18"))
  }
}
