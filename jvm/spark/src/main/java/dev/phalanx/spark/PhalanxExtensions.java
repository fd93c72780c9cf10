package dev.phalanx.spark;

import dev.phalanx.spark.scoring.PredictStrategy;
import org.apache.spark.sql.SparkSessionExtensions;
import scala.Function1;
import scala.runtime.AbstractFunction1;
import scala.runtime.BoxedUnit;

/**
 * What Phalanx adds to Spark SQL (`spark.sql.extensions`): `phalanx.predict` without Python workers. The plugin sets
 * it.
 */
public final class PhalanxExtensions extends AbstractFunction1<SparkSessionExtensions, BoxedUnit> {
  // Raw: the class of sessions is another one in Spark 4 than before.
  @SuppressWarnings({"rawtypes", "unchecked"})
  @Override
  public BoxedUnit apply(SparkSessionExtensions extensions) {
    Function1 strategy =
        new AbstractFunction1<Object, Object>() {
          @Override
          public Object apply(Object session) {
            return new PredictStrategy();
          }
        };
    extensions.injectPlannerStrategy(strategy);
    return BoxedUnit.UNIT;
  }
}
